"""Hugging Face models of random weights, made from their configurations: generating text, classifying, training."""

import os

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import torch  # noqa: E402
import transformers  # noqa: E402
from results import Results  # noqa: E402
from tensors import host  # noqa: E402

results = Results()
print(torch.__version__, transformers.__version__)


def model(kind, configuration, dtype=torch.float32):
    torch.manual_seed(1)
    return kind(configuration).eval().to("cuda", dtype)


def gpt2(dtype=torch.float32):
    return model(transformers.GPT2LMHeadModel, transformers.GPT2Config(
        vocab_size=500, n_positions=128, n_embd=64, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=None,
        pad_token_id=0), dtype)


def llama(dtype=torch.bfloat16):
    return model(transformers.LlamaForCausalLM, transformers.LlamaConfig(
        vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=None, pad_token_id=0), dtype)


def words(count=8, rows=2):
    return torch.randint(1, 500, (rows, count), generator=torch.Generator().manual_seed(2)).to("cuda")


def generated(network, **options):
    ids = words()
    with torch.no_grad():
        torch.manual_seed(3)
        return host(network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, **options))


def logits(network):
    with torch.no_grad():
        return host(network(words(32)).logits)


def bert():
    network = model(transformers.BertForSequenceClassification, transformers.BertConfig(
        vocab_size=500, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        num_labels=3))
    ids = words(20, 4)
    mask = (torch.arange(20, device="cuda")[None, :] < torch.tensor([[20], [10], [15], [5]], device="cuda")).long()
    with torch.no_grad():
        return host(network(ids, attention_mask=mask).logits)


def vit():
    network = model(transformers.ViTForImageClassification, transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8,
        num_labels=5))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(4)).to("cuda")
    with torch.no_grad():
        return host(network(images).logits)


def t5():
    network = model(transformers.T5ForConditionalGeneration, transformers.T5Config(
        vocab_size=500, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0,
        eos_token_id=None, pad_token_id=0))
    return generated(network, do_sample=False)


def trained():
    network = gpt2().train()
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = network(words(32, 4), labels=words(32, 4)).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


for name, case in {
    "gpt2_greedy": lambda: generated(gpt2(), do_sample=False),
    "gpt2_sampled": lambda: generated(gpt2(), do_sample=True, top_k=20),
    "gpt2_beams": lambda: generated(gpt2(), do_sample=False, num_beams=3),
    "gpt2_logits": lambda: logits(gpt2()),
    "gpt2_half": lambda: logits(gpt2(torch.float16)),
    "gpt2_trained": trained,
    "llama_greedy": lambda: generated(llama(torch.float32), do_sample=False),
    "llama_static_cache": lambda: generated(llama(torch.float32), do_sample=False, cache_implementation="static"),
    "llama_logits": lambda: logits(llama()),
    "bert": bert, "vit": vit, "t5": t5,
}.items():
    results.run(name, case)
results.write()
