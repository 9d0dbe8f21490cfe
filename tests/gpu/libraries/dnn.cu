// cuDNN, by its older interface: frameworks use the newer one, which builds graphs of operations.

#include <cudnn.h>

#include "harness.h"

namespace {

struct Handle {
  cudnnHandle_t dnn;
  Handle() { OK(cudnnCreate(&dnn)); }
  ~Handle() { cudnnDestroy(dnn); }
  operator cudnnHandle_t() const { return dnn; }
};

struct Tensor {
  cudnnTensorDescriptor_t description;
  size_t count;
  Tensor(int n, int c, int h, int w) : count(static_cast<size_t>(n) * c * h * w) {
    OK(cudnnCreateTensorDescriptor(&description));
    OK(cudnnSetTensor4dDescriptor(description, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, n, c, h, w));
  }
  ~Tensor() { cudnnDestroyTensorDescriptor(description); }
  operator cudnnTensorDescriptor_t() const { return description; }
};

const float one = 1, zero = 0;

struct Convolution {
  Handle handle;
  Tensor in{4, 8, 24, 24}, out{4, 16, 24, 24};
  cudnnFilterDescriptor_t filter;
  cudnnConvolutionDescriptor_t description;
  Memory<float> x{whole<float>(in.count)}, w{whole<float>(16 * 8 * 3 * 3, 2)}, y{out.count};

  Convolution() {
    OK(cudnnCreateFilterDescriptor(&filter));
    OK(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 16, 8, 3, 3));
    OK(cudnnCreateConvolutionDescriptor(&description));
    OK(cudnnSetConvolution2dDescriptor(description, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    OK(cudnnSetConvolutionMathType(description, CUDNN_FMA_MATH));
  }
  void forward(cudnnConvolutionFwdAlgo_t algorithm) {
    size_t bytes;
    OK(cudnnGetConvolutionForwardWorkspaceSize(handle, in, filter, description, out, algorithm, &bytes));
    Memory<char> work(bytes + 1);
    OK(cudnnConvolutionForward(handle, &one, in, x.data(), filter, w.data(), description, algorithm, work.data(), bytes,
                               &zero, out, y.data()));
    show("y", y);
  }
};

void activation(cudnnActivationMode_t mode) {
  Handle handle;
  Tensor tensor(2, 3, 16, 16);
  Memory<float> x(fractions<float>(tensor.count)), y(tensor.count), dy(fractions<float>(tensor.count, 2)),
      dx(tensor.count);
  cudnnActivationDescriptor_t description;
  OK(cudnnCreateActivationDescriptor(&description));
  OK(cudnnSetActivationDescriptor(description, mode, CUDNN_PROPAGATE_NAN, 1));
  OK(cudnnActivationForward(handle, description, &one, tensor, x.data(), &zero, tensor, y.data()));
  OK(cudnnActivationBackward(handle, description, &one, tensor, y.data(), tensor, dy.data(), tensor, x.data(), &zero,
                             tensor, dx.data()));
  show("y", y);
  show("dx", dx);
}

void pooling(cudnnPoolingMode_t mode) {
  Handle handle;
  Tensor in(2, 4, 20, 20), out(2, 4, 10, 10);
  Memory<float> x(fractions<float>(in.count)), y(out.count), dy(fractions<float>(out.count, 2)), dx(in.count);
  cudnnPoolingDescriptor_t description;
  OK(cudnnCreatePoolingDescriptor(&description));
  OK(cudnnSetPooling2dDescriptor(description, mode, CUDNN_PROPAGATE_NAN, 2, 2, 0, 0, 2, 2));
  OK(cudnnPoolingForward(handle, description, &one, in, x.data(), &zero, out, y.data()));
  OK(cudnnPoolingBackward(handle, description, &one, out, y.data(), out, dy.data(), in, x.data(), &zero, in,
                          dx.data()));
  show("y", y);
  show("dx", dx);
}

void recurrent(cudnnRNNMode_t mode) {
  Handle handle;
  constexpr int length = 12, batch = 4, inputs = 16, hidden = 24;
  cudnnDropoutDescriptor_t dropout;
  OK(cudnnCreateDropoutDescriptor(&dropout));
  OK(cudnnSetDropoutDescriptor(dropout, handle, 0, nullptr, 0, 0));
  cudnnRNNDescriptor_t network;
  OK(cudnnCreateRNNDescriptor(&network));
  OK(cudnnSetRNNDescriptor_v8(network, CUDNN_RNN_ALGO_STANDARD, mode, CUDNN_RNN_DOUBLE_BIAS, CUDNN_UNIDIRECTIONAL,
                              CUDNN_LINEAR_INPUT, CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT, CUDNN_FMA_MATH, inputs, hidden,
                              hidden, 2, dropout, CUDNN_RNN_PADDED_IO_DISABLED));
  const std::vector<int> lengths(batch, length);
  Memory<int> device_lengths(lengths);
  float padding = 0;
  cudnnRNNDataDescriptor_t in, out;
  OK(cudnnCreateRNNDataDescriptor(&in));
  OK(cudnnCreateRNNDataDescriptor(&out));
  OK(cudnnSetRNNDataDescriptor(in, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED, length, batch, inputs,
                               lengths.data(), &padding));
  OK(cudnnSetRNNDataDescriptor(out, CUDNN_DATA_FLOAT, CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED, length, batch, hidden,
                               lengths.data(), &padding));
  cudnnTensorDescriptor_t state;
  const int dimensions[] = {2, batch, hidden}, strides[] = {batch * hidden, hidden, 1};
  OK(cudnnCreateTensorDescriptor(&state));
  OK(cudnnSetTensorNdDescriptor(state, CUDNN_DATA_FLOAT, 3, dimensions, strides));
  size_t weight_bytes, work_bytes, reserve_bytes;
  OK(cudnnGetRNNWeightSpaceSize(handle, network, &weight_bytes));
  OK(cudnnGetRNNTempSpaceSizes(handle, network, CUDNN_FWD_MODE_INFERENCE, in, &work_bytes, &reserve_bytes));
  Memory<float> x(fractions<float>(length * batch * inputs)), y(length * batch * hidden),
      weights(fractions<float>(weight_bytes / sizeof(float), 2));
  Memory<float> last(2 * batch * hidden), last_cell(2 * batch * hidden);
  Memory<char> work(work_bytes + 1), reserve(reserve_bytes + 1);
  OK(cudnnRNNForward(handle, network, CUDNN_FWD_MODE_INFERENCE, device_lengths.data(), in, x.data(), out, y.data(),
                     state, nullptr, last.data(), state, nullptr, mode == CUDNN_LSTM ? last_cell.data() : nullptr,
                     weight_bytes, weights.data(), work_bytes, work.data(), reserve_bytes, reserve.data()));
  show("y", y);
  show("state", last);
}

}  // namespace

CASE(convolution) { Convolution().forward(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM); }
CASE(convolution_precomputed) { Convolution().forward(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM); }
CASE(convolution_by_product) { Convolution().forward(CUDNN_CONVOLUTION_FWD_ALGO_GEMM); }
CASE(convolution_by_fft) { Convolution().forward(CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING); }
CASE(convolution_winograd) { Convolution().forward(CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED); }

CASE(convolution_heuristics) {
  Convolution one_of;
  cudnnConvolutionFwdAlgoPerf_t found[8];
  int count = 0;
  OK(cudnnGetConvolutionForwardAlgorithm_v7(one_of.handle, one_of.in, one_of.filter, one_of.description, one_of.out, 8,
                                            &count, found));
  for (int i = 0; i < count; ++i) std::printf("%d %d %zu\n", found[i].algo, found[i].status, found[i].memory);
  one_of.forward(found[0].algo);
}

CASE(convolution_backward) {
  Convolution c;
  Memory<float> dy(whole<float>(c.out.count, 3)), dx(c.in.count), dw(16 * 8 * 3 * 3), db(16);
  Tensor bias(1, 16, 1, 1);
  size_t data_bytes, filter_bytes;
  const auto data_algorithm = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
  const auto filter_algorithm = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
  OK(cudnnGetConvolutionBackwardDataWorkspaceSize(c.handle, c.filter, c.out, c.description, c.in, data_algorithm,
                                                  &data_bytes));
  OK(cudnnGetConvolutionBackwardFilterWorkspaceSize(c.handle, c.in, c.out, c.description, c.filter, filter_algorithm,
                                                    &filter_bytes));
  Memory<char> work(data_bytes > filter_bytes ? data_bytes + 1 : filter_bytes + 1);
  OK(cudnnConvolutionBackwardData(c.handle, &one, c.filter, c.w.data(), c.out, dy.data(), c.description, data_algorithm,
                                  work.data(), data_bytes, &zero, c.in, dx.data()));
  OK(cudnnConvolutionBackwardFilter(c.handle, &one, c.in, c.x.data(), c.out, dy.data(), c.description, filter_algorithm,
                                    work.data(), filter_bytes, &zero, c.filter, dw.data()));
  OK(cudnnConvolutionBackwardBias(c.handle, &one, c.out, dy.data(), &zero, bias, db.data()));
  show("dx", dx);
  show("dw", dw);
  show("db", db);
}

CASE(relu) { activation(CUDNN_ACTIVATION_RELU); }
CASE(sigmoid) { activation(CUDNN_ACTIVATION_SIGMOID); }
CASE(elu) { activation(CUDNN_ACTIVATION_ELU); }
CASE(max_pooling) { pooling(CUDNN_POOLING_MAX); }
CASE(average_pooling) { pooling(CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING); }
CASE(lstm) { recurrent(CUDNN_LSTM); }
CASE(gru) { recurrent(CUDNN_GRU); }

CASE(softmax) {
  Handle handle;
  Tensor tensor(8, 100, 1, 1);
  Memory<float> x(fractions<float>(tensor.count)), y(tensor.count);
  OK(cudnnSoftmaxForward(handle, CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, &one, tensor, x.data(), &zero, tensor,
                         y.data()));
  show("y", y);
}

CASE(batch_normalization) {
  Handle handle;
  Tensor tensor(8, 6, 12, 12), channels(1, 6, 1, 1);
  Memory<float> x(fractions<float>(tensor.count)), y(tensor.count), scale(whole<float>(6)), bias(whole<float>(6, 2)),
      mean(6), variance(6), saved(6), inverse(6), dy(fractions<float>(tensor.count, 3)), dx(tensor.count), dscale(6),
      dbias(6);
  const auto mode = CUDNN_BATCHNORM_SPATIAL;
  OK(cudnnBatchNormalizationForwardTraining(handle, mode, &one, &zero, tensor, x.data(), tensor, y.data(), channels,
                                            scale.data(), bias.data(), 0.5, mean.data(), variance.data(), 1e-5,
                                            saved.data(), inverse.data()));
  OK(cudnnBatchNormalizationBackward(handle, mode, &one, &zero, &one, &zero, tensor, x.data(), tensor, dy.data(),
                                     tensor, dx.data(), channels, scale.data(), dscale.data(), dbias.data(), 1e-5,
                                     saved.data(), inverse.data()));
  show("y", y);
  show("mean", mean);
  show("dx", dx);
}

CASE(local_response) {
  Handle handle;
  Tensor tensor(2, 16, 8, 8);
  Memory<float> x(fractions<float>(tensor.count)), y(tensor.count);
  cudnnLRNDescriptor_t description;
  OK(cudnnCreateLRNDescriptor(&description));
  OK(cudnnSetLRNDescriptor(description, 5, 1e-4, 0.75, 2));
  OK(cudnnLRNCrossChannelForward(handle, description, CUDNN_LRN_CROSS_CHANNEL_DIM1, &one, tensor, x.data(), &zero,
                                 tensor, y.data()));
  show("y", y);
}

CASE(dropout) {
  Handle handle;
  Tensor tensor(4, 8, 16, 16);
  size_t state_bytes, reserve_bytes;
  OK(cudnnDropoutGetStatesSize(handle, &state_bytes));
  OK(cudnnDropoutGetReserveSpaceSize(tensor, &reserve_bytes));
  Memory<char> state(state_bytes), reserve(reserve_bytes);
  cudnnDropoutDescriptor_t description;
  OK(cudnnCreateDropoutDescriptor(&description));
  OK(cudnnSetDropoutDescriptor(description, handle, 0.3f, state.data(), state_bytes, 42));
  Memory<float> x(fractions<float>(tensor.count)), y(tensor.count);
  OK(cudnnDropoutForward(handle, description, tensor, x.data(), tensor, y.data(), reserve.data(), reserve_bytes));
  show("y", y);
}

CASE(operations_on_tensors) {
  Handle handle;
  Tensor tensor(4, 8, 16, 16), channels(1, 8, 1, 1), sums(4, 8, 1, 1);
  Memory<float> a(whole<float>(tensor.count)), b(whole<float>(8, 2)), c(tensor.count), reduced(sums.count);
  cudnnOpTensorDescriptor_t operation;
  OK(cudnnCreateOpTensorDescriptor(&operation));
  OK(cudnnSetOpTensorDescriptor(operation, CUDNN_OP_TENSOR_MUL, CUDNN_DATA_FLOAT, CUDNN_PROPAGATE_NAN));
  OK(cudnnOpTensor(handle, operation, &one, tensor, a.data(), &one, channels, b.data(), &zero, tensor, c.data()));
  show("product", c);
  OK(cudnnAddTensor(handle, &one, channels, b.data(), &one, tensor, c.data()));
  show("sum", c);
  cudnnReduceTensorDescriptor_t reduction;
  OK(cudnnCreateReduceTensorDescriptor(&reduction));
  OK(cudnnSetReduceTensorDescriptor(reduction, CUDNN_REDUCE_TENSOR_ADD, CUDNN_DATA_FLOAT, CUDNN_PROPAGATE_NAN,
                                    CUDNN_REDUCE_TENSOR_NO_INDICES, CUDNN_32BIT_INDICES));
  size_t bytes;
  OK(cudnnGetReductionWorkspaceSize(handle, reduction, tensor, sums, &bytes));
  Memory<char> work(bytes + 1);
  OK(cudnnReduceTensor(handle, reduction, nullptr, 0, work.data(), bytes, &one, tensor, c.data(), &zero, sums,
                       reduced.data()));
  show("reduced", reduced);
}

CASE(on_a_stream) {
  Convolution c;
  cudaStream_t stream;
  OK(cudaDeviceSynchronize());
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudnnSetStream(c.handle, stream));
  c.forward(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM);
}
