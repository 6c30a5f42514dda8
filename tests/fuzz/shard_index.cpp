// SPDX-License-Identifier: Apache-2.0
// Fuzzes the model.safetensors.index.json of a model in two shards.
#include <span>

#include "base/digest.hpp"
#include "base/files/tensor_file.hpp"
#include "engines/formats/model_files.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/support/temporary_directory.hpp"

namespace tidemill::fuzz {
namespace {

std::string tensor_file_bytes(const TensorMap& tensors) {
  std::string bytes;
  const auto sink = [&bytes](std::span<const std::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return Status();
  };
  require_ok(stream_tensor_file(tensors, {}, sink), "a shard can be written");
  return bytes;
}

// A directory with the config of a model and its shards "a" (tensors that begin with
// "model.layers") and "b" (all others).
class ShardedModel {
public:
  ShardedModel() : directory_(test::memory_directory_path()) {
    engines::ModelConfig config;
    config.vocab_size = 3;
    config.hidden_size = 2;
    config.intermediate_size = 2;
    config.num_layers = 1;
    config.num_heads = 1;
    config.num_kv_heads = 1;
    config.head_dim = 2;
    config.max_positions = 8;
    config.tie_word_embeddings = true;
    config.sliding_windows = {0};
    const TensorMap tensors = engines::random_model_tensors(config, 1);
    digest_ = digest_tensors(tensors);
    TensorMap a;
    TensorMap b;
    for (const auto& [name, tensor] : tensors) {
      (name.starts_with("model.layers") ? a : b).emplace(name, tensor);
    }
    put_file(path("config.json"), engines::model_config_text(config));
    put_file(path("a"), tensor_file_bytes(a));
    put_file(path("b"), tensor_file_bytes(b));
  }

  [[nodiscard]] std::string path(const std::string& name) const {
    return (directory_.path() / name).string();
  }
  [[nodiscard]] const std::string& digest() const { return digest_; }

private:
  test::TemporaryDirectory directory_;
  std::string digest_;
};

}  // namespace

void shard_index(std::string_view input) {
  static const ShardedModel model;
  put_file(model.path("model.safetensors.index.json"), input);
  const auto opened = engines::open_model(model.path(""), TensorPlacement::kCopied);
  if (!opened.ok()) {
    require_refusal(opened.status(), "");
    return;
  }
  require(digest_tensors(opened.value().tensors) == model.digest(),
          "an accepted index gives the whole model");
}

}  // namespace tidemill::fuzz
