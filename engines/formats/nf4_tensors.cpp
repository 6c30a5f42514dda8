// SPDX-License-Identifier: Apache-2.0
#include "engines/formats/nf4_tensors.hpp"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json/json.hpp"
#include "base/tensor/block_nf4.hpp"
#include "base/text/quote.hpp"

namespace tidemill::engines {
namespace {

constexpr std::string_view kState = ".quant_state.bitsandbytes__";
constexpr std::size_t kMaxDimensions = 32;

Status unimplemented(const std::string& message) {
  return {Errc::kUnimplemented, message};
}

// The parts of one weight.
class Parts {
public:
  Parts(const TensorMap& tensors, std::string name) : tensors_(tensors), name_(std::move(name)) {}

  Result<Tensor> join() const {
    TIDEMILL_ASSIGN_OR_RETURN(const Json state, read_state());
    TIDEMILL_ASSIGN_OR_RETURN(std::vector<std::int64_t> shape, shape_of(state));
    Nf4Parts parts;
    TIDEMILL_ASSIGN_OR_RETURN(parts.codes, elements<std::uint8_t>("", DType::kU8));
    TIDEMILL_ASSIGN_OR_RETURN(parts.block_codes, elements<std::uint8_t>(".absmax", DType::kU8));
    TIDEMILL_ASSIGN_OR_RETURN(parts.group_scales, elements<float>(".nested_absmax", DType::kF32));
    TIDEMILL_RETURN_IF_ERROR(check_map(".quant_map", kNf4Values));
    TIDEMILL_RETURN_IF_ERROR(check_map(".nested_quant_map", nf4_scale_values()));
    const Json* offset = state.find("nested_offset");
    const auto number = offset == nullptr ? std::nullopt : offset->number();
    if (!number.has_value()) {
      return corrupt_data("tensor " + quote(name_) + ": nested_offset: must be a number");
    }
    parts.offset = static_cast<float>(*number);
    return make_nf4_tensor(parts, std::move(shape), quote(name_));
  }

  // Returns the names of the tensors that `join` reads.
  [[nodiscard]] std::vector<std::string> names() const {
    return {name_,
            name_ + ".absmax",
            name_ + ".quant_map",
            name_ + ".nested_absmax",
            name_ + ".nested_quant_map",
            name_ + std::string(kState) + "nf4"};
  }

private:
  Result<const Tensor*> part(const std::string& suffix, DType dtype) const {
    const auto found = tensors_.find(name_ + suffix);
    const std::string location = "tensor " + quote(name_ + suffix) + ": ";
    if (found == tensors_.end()) {
      return corrupt_data(location + "missing");
    }
    if (found->second.dtype != dtype) {
      const std::string type(dtype_name(found->second.dtype));
      if (suffix == ".absmax" && found->second.dtype == DType::kF32) {
        return unimplemented(location + "scales must be quantized too (double_quant)");
      }
      return corrupt_data(location + "type " + type + ", expected " +
                          std::string(dtype_name(dtype)));
    }
    return &found->second;
  }

  template <class T>
  Result<std::span<const T>> elements(const std::string& suffix, DType dtype) const {
    TIDEMILL_ASSIGN_OR_RETURN(const Tensor* tensor, part(suffix, dtype));
    return tensor->data.as<T>();
  }

  Status check_map(const std::string& suffix, std::span<const float> expected) const {
    TIDEMILL_ASSIGN_OR_RETURN(const auto values, elements<float>(suffix, DType::kF32));
    if (!std::equal(values.begin(), values.end(), expected.begin(), expected.end())) {
      return unimplemented("tensor " + quote(name_ + suffix) + ": differs from the published map");
    }
    return {};
  }

  Result<Json> read_state() const {
    const std::string suffix = std::string(kState) + "nf4";
    TIDEMILL_ASSIGN_OR_RETURN(const auto text, elements<std::uint8_t>(suffix, DType::kU8));
    Result<Json> json =
        parse_json(std::string_view(reinterpret_cast<const char*>(text.data()), text.size()));
    TIDEMILL_RETURN_IF_ERROR(json.status().with_context("tensor " + quote(name_ + suffix)));
    const auto expect_number = [&](const char* key, std::int64_t expected) -> Status {
      const Json* value = json.value().find(key);
      if (value == nullptr || value->if_integer() == nullptr) {
        return corrupt_data("tensor " + quote(name_) + ": " + key + ": must be an integer");
      }
      return *value->if_integer() == expected
                 ? Status{}
                 : unimplemented("tensor " + quote(name_) + ": " + key + ": " +
                                 std::to_string(*value->if_integer()) + "; only " +
                                 std::to_string(expected) + " is supported");
    };
    TIDEMILL_RETURN_IF_ERROR(expect_number("blocksize", kNf4BlockElements));
    TIDEMILL_RETURN_IF_ERROR(expect_number("nested_blocksize", kNf4GroupBlocks));
    return json;
  }

  Result<std::vector<std::int64_t>> shape_of(const Json& state) const {
    const Json* found = state.find("shape");
    const Json::Array* extents = found == nullptr ? nullptr : found->if_array();
    std::vector<std::int64_t> shape;
    for (std::size_t i = 0; extents != nullptr && i < extents->size(); ++i) {
      const std::int64_t* extent = (*extents)[i].if_integer();
      if (extent == nullptr || i == kMaxDimensions) {
        extents = nullptr;
        break;
      }
      shape.push_back(*extent);
    }
    if (extents == nullptr) {
      return corrupt_data("tensor " + quote(name_) + ": shape: must be a list of integers");
    }
    return shape;
  }

  const TensorMap& tensors_;
  std::string name_;
};

}  // namespace

Result<TensorMap> join_nf4_tensors(TensorMap tensors, const std::string& location) {
  std::vector<std::string> weights;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t at = name.rfind(kState);
    if (at == std::string::npos) {
      continue;
    }
    if (name.substr(at + kState.size()) != "nf4") {
      return unimplemented(location + ": tensor " + quote(name) + ": only nf4 is supported");
    }
    weights.push_back(name.substr(0, at));
  }
  for (const std::string& name : weights) {
    const Parts parts(tensors, name);
    Result<Tensor> joined = parts.join();
    TIDEMILL_RETURN_IF_ERROR(joined.status().with_context(location));
    for (const std::string& used : parts.names()) {
      tensors.erase(used);
    }
    tensors.emplace(name, std::move(joined).value());
  }
  return tensors;
}

}  // namespace tidemill::engines
