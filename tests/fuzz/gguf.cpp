// SPDX-License-Identifier: Apache-2.0
// Fuzzes GGUF files: the header, the tensors, the tokenizer and the model.
#include "engines/formats/gguf.hpp"

#include <cmath>
#include <vector>

#include "base/digest.hpp"
#include "base/tensor/float_tensor.hpp"
#include "base/text/utf8.hpp"
#include "engines/formats/gguf_tokenizer.hpp"
#include "engines/formats/model_files.hpp"
#include "engines/formats/rope.hpp"
#include "engines/tokenizer/tokenizer.hpp"
#include "tests/fuzz/target.hpp"
#include "tests/support/gguf_writer.hpp"

namespace tidemill::fuzz {
namespace {

using engines::GgufHeader;
using engines::GgufLists;

// Checks that tensors do not depend on their placement and survive a round trip.
void try_tensors(const ReadableFile& file, const GgufHeader& header) {
  const auto copied = engines::read_gguf_tensors(file, header, TensorPlacement::kCopied);
  const auto mapped = engines::read_gguf_tensors(file, header, TensorPlacement::kMapped);
  require_ok(copied.status(), "tensors of a checked header can be copied");
  require_ok(mapped.status(), "tensors of a checked header can be mapped");
  const std::string digest = digest_tensors(copied.value());
  require(digest == digest_tensors(mapped.value()), "tensors do not depend on placement");
  test::GgufWriter writer;
  for (const auto& [name, tensor] : copied.value()) {
    require(tensor.data.size_bytes() == tensor_bytes(tensor.dtype, tensor.shape),
            "the size of a tensor matches its shape");
    writer.tensor(name, tensor);
    if (!check_finite(tensor).ok()) {
      continue;
    }
    const Tensor wide = to_float_type(tensor, DType::kF32);
    require_ok(check_finite(wide), "a finite tensor is finite after widening");
  }
  static MemoryFile again;
  again.fill(writer.bytes());
  const ReadableFile second = ReadableFile::open(again.path()).value();
  const auto reread = engines::read_gguf_header(second, GgufLists::kRead);
  require_ok(reread.status(), "a written file can be read");
  const auto tensors = engines::read_gguf_tensors(second, reread.value(), TensorPlacement::kMapped);
  require_ok(tensors.status(), "written tensors can be mapped");
  require(digest == digest_tensors(tensors.value()), "tensors survive a round trip");
}

void try_tokenizer(const Json& keys) {
  const auto texts = engines::gguf_tokenizer(keys);
  if (!texts.ok()) {
    require_refusal(texts.status(), "");
    return;
  }
  const auto tokenizer = engines::Tokenizer::from_json(texts.value().tokenizer_json);
  if (!tokenizer.ok()) {
    require_refusal(tokenizer.status(), "");
    return;
  }
  const auto ids = tokenizer.value().encode("a b  ab\n ", engines::AddSpecialTokens::kYes);
  if (!ids.ok()) {
    require_refusal(ids.status(), "");
    return;
  }
  for (const std::int32_t id : ids.value()) {
    require(tokenizer.value().contains(id), "encoding gives ids of tokens");
  }
}

void try_model(const MemoryFile& file) {
  const auto model = engines::open_model(file.path(), TensorPlacement::kCopied);
  if (!model.ok()) {
    require_refusal(model.status(), file.path() + ": ");
    return;
  }
  const engines::ModelConfig& config = model.value().config;
  const auto again = engines::parse_model_config(engines::model_config_text(config), "again");
  require_ok(again.status(), "a written config can be read");
  require(again.value() == config, "a config survives a round trip");
  for (const float frequency : engines::rope_frequencies(config).inverse) {
    require(std::isfinite(frequency), "frequencies are finite");
  }
  require_ok(engines::check_tensors(engines::expected_tensors(config), model.value().tensors, ""),
             "a model has the tensors of its config");
}

}  // namespace

void gguf(std::string_view input) {
  static MemoryFile file;
  file.fill(input);
  const ReadableFile opened = ReadableFile::open(file.path()).value();
  const auto header = engines::read_gguf_header(opened, GgufLists::kRead);
  const auto skimmed = engines::read_gguf_header(opened, GgufLists::kSkip);
  if (!header.ok()) {
    require_refusal(header.status(), file.path() + ": ");
    return;  // `skimmed` may still be valid if the only error is inside a list
  }
  require_ok(skimmed.status(), "a valid file stays valid if lists are skipped");
  require(skimmed.value().tensors.size() == header.value().tensors.size(),
          "skipping lists changes no tensor");
  try_tensors(opened, header.value());
  try_tokenizer(header.value().keys);
  try_model(file);
}

}  // namespace tidemill::fuzz
