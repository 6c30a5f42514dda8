// SPDX-License-Identifier: Apache-2.0
#include "storage/checkpoint/object_folder.hpp"

#include <algorithm>
#include <span>
#include <system_error>
#include <vector>

#include "base/digest.hpp"

namespace tidemill::storage {
namespace {

constexpr std::size_t kReadBytes = 1U << 20U;

bool is_object_name(std::string_view file_name) {
  const std::size_t dot = file_name.find('.');
  return dot != std::string_view::npos && is_digest(file_name.substr(0, dot)) &&
         (file_name.substr(dot) == ".safetensors" || file_name.substr(dot) == ".blob");
}

}  // namespace

Result<ReadableFile> open_stored_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto type = std::filesystem::symlink_status(path, error).type();
  if (type == std::filesystem::file_type::not_found) {
    return corrupt_data(path.string() + ": missing");
  }
  if (type == std::filesystem::file_type::symlink) {
    return corrupt_data(path.string() + ": a link, not a file of this store");
  }
  if (type == std::filesystem::file_type::directory) {
    return corrupt_data(path.string() + ": a directory, not a file of this store");
  }
  if (!error && type != std::filesystem::file_type::regular) {
    return corrupt_data(path.string() + ": not a regular file");
  }
  return ReadableFile::open(path);
}

Result<StoredObject> ObjectFolder::put(const std::string& name, ObjectKind kind,
                                       const Source& source, const std::set<std::string>& durable) {
  StoredObject object;
  object.ref.name = name;
  object.ref.kind = kind;
  DigestHasher hasher;
  TIDEMILL_RETURN_IF_ERROR(source([&](std::span<const std::byte> bytes) {
    hasher.update(bytes);
    object.ref.size_bytes += bytes.size();
    return Status();
  }));
  object.ref.digest = hasher.digest();
  const std::string file_name = object.ref.file_name();
  if (durable.contains(file_name) && verify(object.ref).ok()) {
    object.reused = true;
    return object;
  }
  TIDEMILL_RETURN_IF_ERROR(remove_directory(file_name));
  DurableFile file(files_, folder_ / file_name);
  TIDEMILL_RETURN_IF_ERROR(
      source([&file](std::span<const std::byte> bytes) { return file.write(bytes); }));
  TIDEMILL_RETURN_IF_ERROR(file.commit());
  TIDEMILL_RETURN_IF_ERROR(verify(object.ref));
  return object;
}

Status ObjectFolder::remove_directory(const std::string& name) {
  std::error_code ignored;
  return std::filesystem::symlink_status(folder_ / name, ignored).type() ==
                 std::filesystem::file_type::directory
             ? remove_tree(files_, folder_, name)
             : Status();
}

Result<StoredObject> ObjectFolder::put_tensors(const std::string& name, const TensorMap& tensors,
                                               const std::set<std::string>& durable) {
  const Source source = [&tensors](const ByteSink& sink) {
    return stream_tensor_file(tensors, default_tensor_metadata(), sink);
  };
  auto stored = put(name, ObjectKind::kTensors, source, durable);
  return stored.ok() ? std::move(stored) : stored.status().with_context(name);
}

Result<StoredObject> ObjectFolder::put_blob(const std::string& name, std::string_view bytes,
                                            const std::set<std::string>& durable) {
  const Source source = [bytes](const ByteSink& sink) {
    return sink(std::as_bytes(std::span(bytes)));
  };
  auto stored = put(name, ObjectKind::kBlob, source, durable);
  return stored.ok() ? std::move(stored) : stored.status().with_context(name);
}

Status ObjectFolder::verify(const ObjectRef& ref) const {
  const std::filesystem::path path = folder_ / ref.file_name();
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, open_stored_file(path));
  if (file.size_bytes() != ref.size_bytes) {
    return corrupt_data(path.string() + ": damaged: " + std::to_string(file.size_bytes()) +
                        " bytes instead of " + std::to_string(ref.size_bytes));
  }
  DigestHasher hasher;
  std::vector<std::byte> chunk(std::min<std::uint64_t>(kReadBytes, ref.size_bytes));
  for (std::uint64_t offset = 0; offset < ref.size_bytes; offset += chunk.size()) {
    chunk.resize(std::min<std::uint64_t>(kReadBytes, ref.size_bytes - offset));
    TIDEMILL_RETURN_IF_ERROR(file.read_at(offset, chunk));
    hasher.update(chunk);
  }
  if (hasher.digest() != ref.digest) {
    return corrupt_data(path.string() +
                        ": damaged: its content does not match the digest in its name");
  }
  return {};
}

Result<TensorMap> ObjectFolder::read_tensors(const ObjectRef& ref) const {
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, open_stored_file(folder_ / ref.file_name()));
  // Copied, so that the tensors remain valid if the file is removed or its disk is replaced.
  TIDEMILL_ASSIGN_OR_RETURN(TensorFile content, read_tensor_file(file, TensorPlacement::kCopied));
  return std::move(content.tensors);
}

Result<std::string> ObjectFolder::read_blob(const ObjectRef& ref) const {
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile file, open_stored_file(folder_ / ref.file_name()));
  std::string bytes(ref.size_bytes, '\0');
  TIDEMILL_RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

Status ObjectFolder::keep_only(const std::set<std::string>& needed) {
  TIDEMILL_RETURN_IF_ERROR(remove_temporary_files(files_, folder_));
  TIDEMILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_directory(folder_));
  for (const std::string& name : names) {
    if (is_object_name(name) && !needed.contains(name)) {
      TIDEMILL_RETURN_IF_ERROR(remove_directory(name));
      const Status removed = remove_file(files_, folder_ / name);
      if (removed.code() != Errc::kNotFound) {
        TIDEMILL_RETURN_IF_ERROR(removed);
      }
    }
  }
  return {};
}

}  // namespace tidemill::storage
