// A stand-in accelerator: a PyTorch backend (PrivateUse1) whose memory is the host's.
//
// Every operation runs the CPU's kernel on the same memory, so results equal the CPU's bit for bit. Like a GPU it refuses
// tensors and generators of another device. It counts operations, and everything that a GPU would wait for: scalars read
// back, results whose size depends on values, and copies that are not both pinned and non-blocking.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace {

constexpr auto KEY = c10::DispatchKey::PrivateUse1;
constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr int DEVICES = 2;

// --- counters --------------------------------------------------------------------------------------------------------

enum Count { OPERATIONS, SCALAR_READS, SIZE_READS, TO_DEVICE, TO_DEVICE_WAITING, TO_HOST, TO_HOST_WAITING, COUNTS };
std::array<std::atomic<int64_t>, COUNTS> counters{};
std::atomic<bool> refuse_float64{false};
using Callback = void (*)(const char*);
Callback on_wait = nullptr;
Callback on_operation = nullptr;

void wait(Count kind, const std::string& name) {
  counters[kind]++;
  if (on_wait) on_wait(name.c_str());
}

void operation(const char* name) {
  counters[OPERATIONS]++;
  if (on_operation) on_operation(name);
}

// --- memory ----------------------------------------------------------------------------------------------------------

thread_local c10::DeviceIndex current = 0;

void release(void* pointer) { c10::free_cpu(pointer); }

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? c10::alloc_cpu(bytes) : nullptr;
    return {data, data, &release, c10::Device(KIND, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
DeviceAllocator device_allocator;

std::mutex pinned_lock;
std::unordered_map<const char*, size_t> pinned;

void release_pinned(void* pointer) {
  {
    std::lock_guard<std::mutex> guard(pinned_lock);
    pinned.erase(static_cast<const char*>(pointer));
  }
  c10::free_cpu(pointer);
}

bool is_pinned(const void* pointer) {
  std::lock_guard<std::mutex> guard(pinned_lock);
  for (const auto& [start, bytes] : pinned)
    if (pointer >= start && pointer < start + bytes) return true;
  return false;
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? c10::alloc_cpu(bytes) : nullptr;
    if (data) {
      std::lock_guard<std::mutex> guard(pinned_lock);
      pinned[static_cast<const char*>(data)] = bytes;
    }
    return {data, data, &release_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
PinnedAllocator pinned_allocator;

void check_dtype(at::ScalarType dtype) {
  TORCH_CHECK_TYPE(!(refuse_float64 && dtype == at::kDouble), "the stand-in device has no float64");
}

at::Tensor on_device(c10::DataPtr data, size_t bytes, caffe2::TypeMeta dtype) {
  check_dtype(c10::typeMetaToScalarType(dtype));
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), &device_allocator, true);
  return at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(KEY), dtype);
}

at::Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  auto type = c10::dtype_or_default(dtype);
  check_dtype(type);
  auto before = current;
  if (device && device->has_index()) current = device->index();
  auto result = at::detail::empty_generic(size, &device_allocator, c10::DispatchKeySet(KEY), type, format);
  current = before;
  return result;
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  auto type = c10::dtype_or_default(dtype);
  check_dtype(type);
  auto before = current;
  if (device && device->has_index()) current = device->index();
  auto result = at::detail::empty_strided_generic(size, stride, &device_allocator, c10::DispatchKeySet(KEY), type);
  current = before;
  return result;
}

const at::Tensor& resize_(
    const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  int64_t numbers = 1;
  for (auto each : size) numbers *= each;
  auto* tensor = self.unsafeGetTensorImpl();
  auto bytes = (numbers + self.storage_offset()) * self.element_size();
  if (bytes > self.storage().nbytes()) {
    auto data = device_allocator.allocate(bytes);
    if (self.storage().nbytes()) std::memcpy(data.get(), self.storage().data(), self.storage().nbytes());
    tensor->unsafe_storage().set_data_ptr_noswap(std::move(data));
    tensor->unsafe_storage().unsafeGetStorageImpl()->set_nbytes(bytes);
  }
  tensor->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) tensor->empty_tensor_restride(*format);
  return self;
}

at::Tensor as_strided(
    const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view(const at::Tensor& self, c10::IntArrayRef size) { return at::native::view(self, size); }
at::Tensor reshape_alias(const at::Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::as_strided_tensorimpl(self, size, stride, self.storage_offset());
}
at::Tensor unfold(const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  auto sizes = self.sizes().vec();
  auto strides = self.strides().vec();
  sizes.push_back(size);
  strides.push_back(strides[dim]);
  sizes[dim] = (sizes[dim] - size) / step + 1;
  strides[dim] *= step;
  return at::as_strided(self, sizes, strides, self.storage_offset());
}
at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return self;
}
at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const int64_t numbers = source.nbytes() / self.element_size();
  return set_storage(self, std::move(source), 0, {numbers}, {1});
}
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

// --- generator -------------------------------------------------------------------------------------------------------

struct StandInGenerator final : c10::GeneratorImpl {
  at::Generator inner;

  StandInGenerator(c10::DeviceIndex index, at::Generator inner_)
      : c10::GeneratorImpl(c10::Device(KIND, index), c10::DispatchKeySet(KEY)), inner(std::move(inner_)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { inner.set_offset(offset); }
  uint64_t get_offset() const override { return inner.get_offset(); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  StandInGenerator* clone_impl() const override { return new StandInGenerator(device().index(), inner.clone()); }
};

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<StandInGenerator>(index < 0 ? current : index, at::detail::createCPUGenerator());
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static std::array<at::Generator, DEVICES> generators{new_generator(0), new_generator(1)};
  return generators[index < 0 ? current : index];
}

// --- every operation: the CPU's kernel on the same memory -----------------------------------------------------------

at::Tensor as_host(const at::Tensor& tensor) {
  const auto& storage = tensor.storage();
  c10::DataPtr data(const_cast<void*>(storage.data()), c10::Device(c10::kCPU));
  c10::Storage host(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), nullptr, false);
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(host), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.dim() == 0) result.unsafeGetTensorImpl()->set_wrapped_number(tensor.unsafeGetTensorImpl()->is_wrapped_number());
  return result;
}

at::Tensor from_host(const at::Tensor& tensor) {
  auto* owner = new at::Tensor(tensor);
  void* data = const_cast<void*>(tensor.storage().data());
  c10::DataPtr pointer(data, owner, [](void* held) { delete static_cast<at::Tensor*>(held); }, c10::Device(KIND, current));
  auto result = on_device(std::move(pointer), tensor.storage().nbytes(), tensor.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return result;
}

const std::unordered_set<std::string> SIZED_BY_VALUES{
    "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::bincount", "aten::repeat_interleave",
    "aten::linalg_lstsq", "aten::_linalg_svd", "aten::_linalg_eigh", "aten::linalg_eig"};

struct Call {
  const std::string& name;
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;  // the device's and the host's

  at::Tensor host(const at::Tensor& tensor, bool written) {
    if (!tensor.defined()) return tensor;
    if (tensor.device().type() != KIND) {
      TORCH_CHECK(
          tensor.dim() == 0 && !written, name, ": expected all tensors to be on the same device, but found one of ",
          tensor.sizes(), " on ", tensor.device(), " beside the stand-in's");
      return tensor;
    }
    for (const auto& [device, host] : pairs)
      if (device.is_same(tensor)) return host;
    auto alias = written && tensor.numel() == 0 ? at::empty(tensor.sizes(), tensor.options().device(c10::kCPU)) : as_host(tensor);
    pairs.emplace_back(tensor, alias);
    return alias;
  }

  at::Tensor back(const at::Tensor& result) {
    if (!result.defined()) return result;
    for (const auto& [device, host] : pairs)
      if (host.is_same(result)) return device;
    for (const auto& [device, host] : pairs) {
      if (result.storage().data() && result.storage().data() == host.storage().data()) {  // a view
        auto viewed = at::detail::make_tensor<c10::TensorImpl>(
            c10::Storage(device.storage()), c10::DispatchKeySet(KEY), result.dtype());
        viewed.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
        return viewed;
      }
    }
    return from_host(result);
  }

  void settle() {  // outputs that the kernel resized
    for (const auto& [device, host] : pairs) {
      if (device.sizes() == host.sizes() && device.strides() == host.strides()) continue;
      if (device.storage().data() != host.storage().data()) {
        auto moved = from_host(host);
        device.unsafeGetTensorImpl()->set_storage_keep_dtype(moved.storage());
      }
      device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }
};

bool masked(const at::Tensor& index) {
  return index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
}

void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  operation(name.c_str());
  if (SIZED_BY_VALUES.count(name)) wait(SIZE_READS, name);
  Call call{name, {}};
  const auto count = schema.arguments().size();
  auto arguments = torch::jit::last(*stack, count);
  const auto begin = stack->size() - count;
  for (size_t at = 0; at < count; at++) {
    c10::IValue value = arguments[at];
    const auto* alias = schema.arguments()[at].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    if (value.isTensor()) {
      (*stack)[begin + at] = call.host(value.toTensor(), written);
    } else if (value.isTensorList()) {
      auto hosts = c10::List<at::Tensor>();
      for (const at::Tensor& tensor : value.toTensorVector()) hosts.push_back(call.host(tensor, written));
      (*stack)[begin + at] = hosts;
    } else if (value.isOptionalTensorList()) {
      auto hosts = c10::List<std::optional<at::Tensor>>();
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        hosts.push_back(tensor ? std::optional<at::Tensor>(call.host(*tensor, written)) : std::nullopt);
        if (name == "aten::_index_put_impl_" && tensor && masked(*tensor)) wait(SIZE_READS, name);
      }
      (*stack)[begin + at] = hosts;
    } else if (value.isGenerator()) {
      auto generator = value.toGenerator();
      TORCH_CHECK(
          generator.device().type() == KIND, name, ": expected a generator of the stand-in device, but found one of ",
          generator.device());
      (*stack)[begin + at] = static_cast<StandInGenerator*>(generator.unsafeGetGeneratorImpl())->inner;
    } else if (value.isDevice() && value.toDevice().type() == KIND) {
      (*stack)[begin + at] = c10::Device(c10::kCPU);
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  const auto returned = schema.returns().size();
  const auto first = stack->size() - returned;
  call.settle();
  for (size_t at = 0; at < returned; at++) {
    c10::IValue value = (*stack)[first + at];
    if (value.isTensor()) {
      (*stack)[first + at] = call.back(value.toTensor());
    } else if (value.isTensorList()) {
      auto results = c10::List<at::Tensor>();
      for (const at::Tensor& tensor : value.toTensorVector()) results.push_back(call.back(tensor));
      (*stack)[first + at] = results;
    }
  }
}

// --- copies and reads ------------------------------------------------------------------------------------------------

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  const bool from_device = self.device().type() == KIND, to_device = target.device().type() == KIND;
  const auto source = from_device ? as_host(self) : self;
  const auto destination = to_device ? as_host(target) : target;
  if (from_device && to_device) {
    operation("aten::copy_");
  } else if (self.numel() > 0) {
    const auto& outside = from_device ? target : self;
    const bool direct = self.dtype() == target.dtype() && self.is_non_overlapping_and_dense() &&
        (self.numel() == 1 || self.strides() == target.strides());
    const bool waits = !(non_blocking && direct && is_pinned(outside.storage().data()));
    if (to_device) {
      waits ? wait(TO_DEVICE_WAITING, "copy to the device") : (void)counters[TO_DEVICE]++;
    } else {
      waits ? wait(TO_HOST_WAITING, "copy to the host") : (void)counters[TO_HOST]++;
    }
  }
  destination.copy_(source);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  at::native::resize_output(target, self.sizes());
  return copy_from(self, target, false);
}

at::Scalar read_scalar(const at::Tensor& self) {
  wait(SCALAR_READS, "read of a scalar");
  return as_host(self).item();
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  wait(SCALAR_READS, "aten::equal");
  return at::equal(as_host(self), as_host(other));
}

// --- convolutions, which PyTorch asks of every new backend by another name -------------------------------------------

at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding, int64_t groups) {
  operation("aten::convolution");
  const std::string name = "aten::convolution";
  Call call{name, {}};
  auto hosted = bias && bias->defined() ? std::optional<at::Tensor>(call.host(*bias, false)) : std::nullopt;
  return from_host(at::convolution(
      call.host(input, false), call.host(weight, false), hosted, stride, padding, dilation, transposed, output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, c10::IntArrayRef stride,
    c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  operation("aten::convolution_backward");
  const std::string name = "aten::convolution_backward";
  Call call{name, {}};
  std::vector<int64_t> channels{transposed ? weight.size(1) * groups : weight.size(0)};
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      call.host(gradient, false), call.host(input, false), call.host(weight, false), channels, stride, padding, dilation,
      transposed, output_padding, groups, wanted);
  auto back = [](const at::Tensor& tensor) { return tensor.defined() ? from_host(tensor) : tensor; };
  return {back(of_input), back(of_weight), back(of_bias)};
}

// --- guard and hooks -------------------------------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return KIND; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = c10::Device(KIND, current);
    current = device.index();
    return before;
  }
  c10::Device getDevice() const override { return {KIND, current}; }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { wait(SCALAR_READS, "synchronize"); }
  void synchronizeEvent(void*) const override { wait(SCALAR_READS, "synchronize"); }
  void synchronizeDevice(const c10::DeviceIndex) const override { wait(SCALAR_READS, "synchronize"); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return DEVICES; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current = device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return std::exchange(current, device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return std::exchange(current, device); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  at::Device getDeviceFromPtr(void*) const override { return {KIND, current}; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto data = device_allocator.allocate(bytes);
    std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

const bool registered = [] {
  c10::SetAllocator(KIND, &device_allocator);
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>()); }

// Autocast with the operations of CUDA's, which are more than the CPU's: results differ from the CPU's there.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
#define FLOAT32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
  AT_FORALL_FP32(FLOAT32)
#define PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_PROMOTE(PROMOTE)
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize_);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", unfold);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", read_scalar);
  m.impl("equal", equal);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  // One launch for a list of tensors, as GPUs have it; PyTorch's default is a loop over the list.
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames())
    if (name.name.rfind("aten::_foreach_", 0) == 0)
      m.impl((name.name + (name.overload_name.empty() ? "" : "." + name.overload_name)).c_str(),
             torch::CppFunction::makeFromBoxedFunction<&on_host>());
}

}  // namespace

extern "C" {
int64_t standin_count(int which) { return counters[which]; }
void standin_reset() {
  for (auto& each : counters) each = 0;
}
void standin_refuse_float64(bool refuse) { refuse_float64 = refuse; }
void standin_on_wait(Callback callback) { on_wait = callback; }
void standin_on_operation(Callback callback) { on_operation = callback; }
int standin_device() { return current; }
void standin_set_device(int device) { current = static_cast<c10::DeviceIndex>(device); }
}
