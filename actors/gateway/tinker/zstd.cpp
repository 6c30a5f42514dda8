// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/tinker/zstd.hpp"

#include <algorithm>
#include <memory>
#include <vector>
#include <zstd.h>

namespace tidemill::actors::tinker {

Result<std::string> decompress_zstd(std::string_view bytes, std::size_t max_bytes) {
  const std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream(ZSTD_createDStream(),
                                                                          &ZSTD_freeDStream);
  if (stream == nullptr) {
    return Status(Errc::kResourceExhausted, "there is no memory to decompress the body");
  }
  // Larger windows are refused, which bounds the memory of the stream.
  ZSTD_DCtx_setParameter(stream.get(), ZSTD_d_windowLogMax, 27);
  std::string out;
  std::vector<char> part(ZSTD_DStreamOutSize());
  ZSTD_inBuffer input{bytes.data(), bytes.size(), 0};
  std::size_t left = 1;  // 0: a frame is complete and all of its output has been taken
  while (input.pos < input.size || left != 0) {
    ZSTD_outBuffer output{part.data(), part.size(), 0};
    left = ZSTD_decompressStream(stream.get(), &output, &input);
    if (ZSTD_isError(left) != 0U) {
      return corrupt_data(std::string("the body is not valid zstd: ") + ZSTD_getErrorName(left));
    }
    if (output.pos > max_bytes - out.size()) {
      return invalid_argument("the decompressed body exceeds " + std::to_string(max_bytes) +
                              " bytes");
    }
    out.append(part.data(), output.pos);
    if (left != 0 && input.pos == input.size && output.pos < output.size) {
      return corrupt_data("the body ends within a zstd frame");
    }
  }
  return out;
}

}  // namespace tidemill::actors::tinker
