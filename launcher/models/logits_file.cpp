// SPDX-License-Identifier: Apache-2.0
#include "launcher/models/logits_file.hpp"

#include "base/files/tensor_file.hpp"
#include "base/tensor/tensor.hpp"

namespace tidemill::launcher {

LogitsFile::LogitsFile(FileSystem& files, std::filesystem::path target)
    : files_(files), target_(std::move(target)), rows_path_(target_) {
  rows_path_ += ".rows";
  rows_ = std::make_unique<DurableFile>(files_, rows_path_);
}

LogitsFile::~LogitsFile() {
  rows_.reset();
  std::error_code ignored;
  std::filesystem::remove(rows_path_, ignored);
}

Status LogitsFile::add(std::span<const float> values, std::int64_t columns) {
  if (shapes_.size() == kMaxTensors) {
    return invalid_argument(target_.string() + ": holds the logits of at most " +
                            std::to_string(kMaxTensors) + " lines");
  }
  shapes_.push_back({static_cast<std::int64_t>(values.size()) / columns, columns});
  return with_target(rows_->write(std::as_bytes(values)));
}

Status LogitsFile::with_target(const Status& status) const {
  std::string message = status.message();
  const std::string rows = rows_path_.string();
  if (const std::size_t at = message.find(rows); at != std::string::npos) {
    message.replace(at, rows.size(), target_.string());
  }
  return Status(status.code(), std::move(message));
}

Status LogitsFile::finish() {
  TIDEMILL_RETURN_IF_ERROR(with_target(rows_->commit()));
  Buffer all;
  if (!shapes_.empty()) {
    TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, ReadableFile::open(rows_path_));
    TIDEMILL_ASSIGN_OR_RETURN(all, file.map());
  }
  TensorMap tensors;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    Tensor tensor{DType::kF32, shapes_[i], {}};
    const std::size_t size = static_cast<std::size_t>(tensor.num_elements()) * sizeof(float);
    tensor.data = all.slice(offset, size, DType::kF32);
    offset += size;
    tensors.emplace(std::to_string(i), std::move(tensor));
  }
  return write_tensor_file(files_, target_, tensors);
}

}  // namespace tidemill::launcher
