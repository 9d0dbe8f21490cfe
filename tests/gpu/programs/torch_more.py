"""PyTorch: operations of many kinds, and what brings kernels of its own (jiterator, C++ extensions, flex attention)."""

import numpy
import torch
import torch.nn.attention
import torch.nn.functional as F
import torch.utils.checkpoint
from results import Results
from tensors import data, error_of, host, small

results = Results()
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.deterministic = True
half, bf16 = torch.float16, torch.bfloat16


def seeded(function):
    torch.manual_seed(7)
    torch.cuda.manual_seed(7)
    return function()


def gradients(module, x):
    """Output and gradient of a module that is the same each time."""
    x = x.requires_grad_()
    out = module(x)
    out = out[0] if isinstance(out, tuple) else out
    out.square().sum().backward()
    return numpy.concatenate([host(out).ravel(), host(x.grad).ravel()])


def layer(make, *shape, dtype=torch.float32):
    return lambda: seeded(lambda: gradients(make().to("cuda", dtype), data(*shape, dtype=dtype)))


def symmetric(n):
    x = data(n, n, dtype=torch.float64)
    return x + x.T + 2 * n * torch.eye(n, device="cuda", dtype=torch.float64)


def scaler():
    """Mixed precision with gradient scaling."""
    def train():
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to("cuda")
        optimizer, scaling, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), torch.amp.GradScaler("cuda"), []
        for i in range(8):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=half):
                loss = model(data(32, 64, seed=i)).square().mean()
            scaling.scale(loss).backward()
            scaling.step(optimizer)
            scaling.update()
            losses.append(loss.item())
        return losses
    return seeded(train)


def optimizer(kind, **options):
    def train():
        model = torch.nn.Linear(64, 64).to("cuda")
        chosen = kind(model.parameters(), **options)
        for i in range(5):
            chosen.zero_grad()
            model(data(16, 64, seed=i)).square().mean().backward()
            chosen.step()
        return host(model.weight)
    return lambda: seeded(train)


def checkpointed():
    def train():
        block = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.2), torch.nn.Tanh()).to("cuda")
        x = data(16, 64).requires_grad_()
        torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum().backward()
        return host(x.grad)
    return seeded(train)


def saved_and_loaded():
    import io

    file = io.BytesIO()
    torch.save({"x": small(1000), "y": data(10, 10, dtype=bf16)}, file)
    file.seek(0)
    read = torch.load(file, map_location="cuda")
    return numpy.concatenate([host(read["x"]), host(read["y"]).ravel()])


def jiterator():
    """An elementwise kernel in source, which NVRTC compiles here and the GPU host loads."""
    kernel = torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x, T y) { return x * y + x - y; }")
    return host(kernel(small(10000), small(10000, seed=1)))


def compiled_kernel():
    """A kernel in source, by torch.cuda._compile_kernel."""
    kernel = torch.cuda._compile_kernel("""
        __global__ void add_scaled(const float* x, float* y, float factor, int count) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < count) y[i] += factor * x[i];
        }""", "add_scaled")
    x, y = small(5000), small(5000, seed=1)
    kernel(grid=(40, 1, 1), block=(128, 1, 1), args=(x, y, 3.0, 5000))
    return host(y)


def scaled_product():
    """A product of 8-bit floating point numbers."""
    a, b = small(64, 128).to(torch.float8_e4m3fn), small(32, 128, seed=1).to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    return host(torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=bf16))


def attention(backend, dtype):
    def run():
        q, k, v = (data(2, 4, 128, 64, dtype=dtype, seed=i).requires_grad_() for i in range(3))
        with torch.nn.attention.sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out.float().sum().backward()
        return numpy.concatenate([host(out).ravel(), host(v.grad).ravel()])
    return run


def flex():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 64), None, None, 256, 256, device="cuda")
    q, k, v = (data(1, 2, 256, 64, seed=i) for i in range(3))
    return host(torch.compile(flex_attention)(q, k, v, block_mask=mask))


def nested():
    rows = [data(n, 16, seed=n) for n in (3, 5, 8)]
    return host(torch.nested.nested_tensor(rows, layout=torch.jagged).sum(dim=-1).values())


def assertion():
    """An index out of bounds is seen on the device; nothing works after that."""
    first = error_of(lambda: (torch.zeros(10, device="cuda")[torch.tensor([11], device="cuda")],
                              torch.cuda.synchronize()))
    second = error_of(lambda: torch.zeros(10, device="cuda").sum().item())
    return [float(sum(map(ord, first))), float(sum(map(ord, second)))]


SDP = torch.nn.attention.SDPBackend
cases = {
    # convolutions and their gradients: cuDNN
    "conv1d": layer(lambda: torch.nn.Conv1d(8, 16, 5, stride=2), 4, 8, 100),
    "conv3d": layer(lambda: torch.nn.Conv3d(4, 8, 3), 2, 4, 12, 12, 12),
    "conv_transposed": layer(lambda: torch.nn.ConvTranspose2d(8, 4, 4, stride=2), 2, 8, 14, 14),
    "conv_grouped_half": layer(lambda: torch.nn.Conv2d(16, 16, 3, groups=4), 2, 16, 20, 20, dtype=half),
    "depthwise": layer(lambda: torch.nn.Conv2d(16, 16, 3, groups=16), 2, 16, 20, 20),
    "lstm": layer(lambda: torch.nn.LSTM(32, 64, num_layers=2, bidirectional=True), 20, 4, 32),
    "gru_half": layer(lambda: torch.nn.GRU(32, 64), 20, 4, 32, dtype=half),
    "batch_norm": layer(lambda: torch.nn.BatchNorm2d(8), 4, 8, 16, 16),
    "group_norm": layer(lambda: torch.nn.GroupNorm(2, 8), 4, 8, 16, 16),
    "max_pool": lambda: host(F.max_pool2d(data(2, 8, 32, 32), 3, 2)),
    "average_pool": layer(lambda: torch.nn.AvgPool2d(3, 2), 2, 8, 31, 31),
    "transformer": layer(lambda: torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0), 2, 32, 64),
    "grid_sample": lambda: host(F.grid_sample(data(1, 3, 16, 16), data(1, 8, 8, 2, seed=1), align_corners=True)),
    "interpolated": lambda: host(F.interpolate(data(1, 3, 16, 16), scale_factor=2.5, mode="bicubic",
                                               align_corners=False)),
    "unfolded": lambda: host(F.unfold(data(1, 3, 16, 16), 3)),
    "ctc": lambda: host(F.ctc_loss(data(50, 4, 20).log_softmax(2),
                                   (torch.arange(1, 41).reshape(4, 10) % 19 + 1).to("cuda"),
                                   torch.full((4,), 50), torch.full((4,), 10))),
    # products: cuBLAS, cuBLASLt
    "bmm": lambda: host(torch.bmm(data(8, 64, 32), data(8, 32, 48, seed=1))),
    "baddbmm_half": lambda: host(torch.baddbmm(data(8, 64, 48, dtype=half), data(8, 64, 32, dtype=half),
                                               data(8, 32, 48, dtype=half, seed=1))),
    "addmm_gelu": lambda: host(F.gelu(torch.addmm(data(48), data(64, 32), data(32, 48, seed=1)))),
    "einsum": lambda: host(torch.einsum("bij,bkj->bik", data(4, 32, 16), data(4, 24, 16, seed=1))),
    "product_int8": lambda: host(torch._int_mm(small(64, 64, dtype=torch.int8),
                                               small(64, 64, dtype=torch.int8, seed=1))),
    "product_complex": lambda: host(torch.complex(data(64, 64),
                                                  data(64, 64, seed=1)) @ torch.complex(data(64, 64, seed=2),
                                                                                        data(64, 64, seed=3))),
    "product_double": lambda: host(data(200, 100, dtype=torch.float64) @ data(100, 150, dtype=torch.float64, seed=1)),
    "product_fp8": scaled_product,
    "vector_product": lambda: host(data(500, 300) @ data(300, seed=1)),
    "triangular_solve": lambda: host(torch.linalg.solve_triangular(symmetric(64).tril(),
                                                                   data(64, 8, dtype=torch.float64), upper=False)),
    # cuSOLVER, MAGMA
    "eigh": lambda: host(torch.linalg.eigvalsh(symmetric(48))),
    "qr": lambda: host(torch.linalg.qr(data(96, 32, dtype=torch.float64))[1].abs()),
    "lu": lambda: host(torch.linalg.lu(symmetric(64))[2]),
    "inverse": lambda: host(torch.linalg.inv(symmetric(64))),
    "determinant": lambda: host(torch.linalg.slogdet(symmetric(64))[1]),
    "least_squares": lambda: host(torch.linalg.lstsq(data(100, 10, dtype=torch.float64),
                                                     data(100, 2, dtype=torch.float64, seed=1))[0]),
    "pseudo_inverse": lambda: host(torch.linalg.pinv(data(40, 20, dtype=torch.float64))),
    "matrix_exponential": lambda: host(torch.linalg.matrix_exp(data(16, 16, dtype=torch.float64) * 0.1)),
    "cholesky_batched": lambda: host(torch.linalg.cholesky(
        torch.stack([symmetric(32) + i * torch.eye(32, device="cuda") for i in range(20)]))),
    "singular_values_batched": lambda: host(torch.linalg.svdvals(data(16, 20, 10, dtype=torch.float64))),
    # cuFFT
    "fft_3d": lambda: host(torch.view_as_real(torch.fft.fftn(data(16, 16, 16)))),
    "fft_odd": lambda: host(torch.view_as_real(torch.fft.fft(data(4, 1009)))),
    "fft_half": lambda: host(torch.view_as_real(torch.fft.rfft(data(4, 256).half()))),
    "stft": lambda: host(torch.view_as_real(torch.stft(data(4000), 256, window=torch.hann_window(256, device="cuda"),
                                                       return_complex=True))),
    # cuSPARSE
    "sparse_vector": lambda: host((small(300,
                                         300) * (small(300, 300, seed=3) > 2)).to_sparse_csr() @ small(300, seed=1)),
    "sparse_sparse": lambda: host(((small(200, 200) * (small(200, 200, seed=3) > 2)).to_sparse_csr() @
                                   (small(200, 200,
                                          seed=1) * (small(200, 200, seed=4) > 2)).to_sparse_csr()).to_dense()),
    "sparse_transposed": lambda: host((small(100, 80) * (small(100, 80, seed=3) > 2)).to_sparse_csc().to_dense()),
    "sparse_sampled": lambda: host(torch.sparse.sampled_addmm(
        (small(64, 64) * (small(64, 64, seed=3) > 2)).to_sparse_csr(),
                                                               small(64, 16), small(16, 64, seed=1)).to_dense()),
    # random numbers
    "distributions": lambda: seeded(lambda: numpy.concatenate([host(values(torch.empty(500, device="cuda")))
                                                               for values in (
        lambda x: x.normal_(), lambda x: x.exponential_(), lambda x: x.cauchy_(), lambda x: x.geometric_(0.3),
        lambda x: x.log_normal_())])),
    "permutation": lambda: seeded(lambda: host(torch.randperm(10000, device="cuda"))),
    "multinomial": lambda: seeded(lambda: host(
        torch.multinomial(torch.arange(1.0, 101, device="cuda"), 1000, replacement=True))),
    "bernoulli_poisson": lambda: seeded(lambda: host(torch.poisson(torch.full((500,), 3.0, device="cuda")) +
                                                     torch.bernoulli(
        torch.full((500,), 0.5, device="cuda")))),
    "gamma": lambda: seeded(lambda: host(torch.distributions.Gamma(torch.full((500,), 2.0, device="cuda"),
                                                                   1.0).sample())),
    # sorting, counting, indexing
    "sort_stable": lambda: host(torch.sort(small(50000), stable=True)[1]),
    "median_mode": lambda: host(torch.stack([small(100, 101).median(1)[0], small(100, 101).mode(1)[0]])),
    "quantile": lambda: host(torch.quantile(data(1000), torch.tensor([0.1, 0.5, 0.9], device="cuda"))),
    "histogram": lambda: host(torch.histc(data(10000), 50, -3, 3)),
    "bincount": lambda: host(torch.bincount((small(10000) + 4).long())),
    "searchsorted": lambda: host(torch.searchsorted(data(1000).sort()[0], data(500, seed=1))),
    "nonzero": lambda: host(small(300, 300).nonzero()),
    "masked": lambda: host(small(1000)[small(1000, seed=1) > 0]),
    "scatter_add": lambda: host(torch.zeros(50,
                                            device="cuda").scatter_add_(0, (small(5000).long() + 4) * 5,
                                                                        small(5000, seed=1))),
    "index_put": lambda: host(torch.zeros(50,
                                          device="cuda").index_put_(((small(500).long() + 4),), small(500, seed=1),
                                                                    accumulate=True)),
    "gather": lambda: host(torch.gather(small(50, 60), 1, (small(50, 20).long() + 4) * 6)),
    "cumulative": lambda: host(torch.stack([small(100, 200).cumsum(1)[:, -1], small(100, 200).cummax(1)[0][:, -1]])),
    "unique_counts": lambda: host(torch.unique(small(10000), return_counts=True)[1]),
    "embedding_bag": lambda: host(F.embedding_bag((small(64).long() + 4), data(10, 32),
                                                  torch.arange(0, 64, 8, device="cuda"))),
    # element by element, in types of all kinds
    "special_functions": lambda: host(torch.stack([torch.special.gammaln(data(1000).abs() + 1),
                                                   torch.special.erfcx(data(1000)),
                                                   torch.special.bessel_j0(data(1000)),
                                                   torch.special.i0e(data(1000))])),
    "integers": lambda: host((small(1000, dtype=torch.int64) << 3) ^ small(1000, dtype=torch.int64, seed=1)),
    "booleans": lambda: host((small(1000) > 0).logical_xor(small(1000, seed=1) > 0)),
    "conversions": lambda: host(data(1000).half().to(bf16).double().to(torch.int16)),
    "float8": lambda: host(data(1000).to(torch.float8_e5m2).float() + data(1000).to(torch.float8_e4m3fn).float()),
    "foreach": lambda: host(
        torch.stack(torch._foreach_mul(torch._foreach_add([small(100, seed=i) for i in range(40)], 2), 3))),
    "distances": lambda: host(torch.cdist(data(100, 16), data(80, 16, seed=1))),
    "vmap": lambda: host(torch.func.vmap(torch.func.grad(lambda x: (x ** 3).sum()))(small(20, 30))),
    "jacobian": lambda: host(torch.func.jacrev(lambda x: torch.tanh(x).cumsum(0))(data(30))),
    "nested": nested,
    "quantized": lambda: host(torch.fake_quantize_per_tensor_affine(data(1000), 0.1, 0, -128, 127)),
    # attention
    "attention_flash": attention(SDP.FLASH_ATTENTION, half),
    "attention_efficient": attention(SDP.EFFICIENT_ATTENTION, torch.float32),
    "attention_cudnn": attention(SDP.CUDNN_ATTENTION, bf16),
    "attention_math": attention(SDP.MATH, torch.float32),
    "attention_flex": flex,
    # training
    "gradient_scaling": scaler,
    "adam_fused": optimizer(torch.optim.Adam, fused=True),
    "adam_capturable": optimizer(torch.optim.Adam, capturable=True),
    "adagrad": optimizer(torch.optim.Adagrad, foreach=True),
    "rmsprop": optimizer(torch.optim.RMSprop, momentum=0.5),
    "checkpointed": checkpointed,
    "saved_and_loaded": saved_and_loaded,
    # kernels of one's own
    "jiterator": jiterator,
    "compiled_kernel": compiled_kernel,
    # last: it ends the context
    "assertion": assertion,
}
for name, case in cases.items():
    results.run(name, case)
results.write()
