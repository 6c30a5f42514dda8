# Writes a C++ source with the bytes of files. Run as a script:
#   cmake -DOUTPUT=FILE.cpp -DFILES=a.html;b.js -DFOLDER=DIR -P embed_files.cmake
# The source defines tidemill::actors::pages::embedded_files(), which embedded_files.hpp declares.
set(arrays "")
set(rows "")
set(index 0)
foreach(name IN LISTS FILES)
  file(READ "${FOLDER}/${name}" bytes HEX)
  file(SHA256 "${FOLDER}/${name}" digest)
  string(LENGTH "${bytes}" length)
  math(EXPR length "${length} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char kFile${index}[] = {${bytes}};\n")
  string(APPEND rows "    {\"${name}\", kFile${index}, ${length}, \"${digest}\"},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE "${OUTPUT}" "// Made by cmake/embed_files.cmake.
#include \"actors/gateway/pages/embedded_files.hpp\"

namespace tidemill::actors::pages {
namespace {
${arrays}
constexpr EmbeddedFile kFiles[] = {
${rows}};
}  // namespace

std::span<const EmbeddedFile> embedded_files() noexcept {
  return kFiles;
}

}  // namespace tidemill::actors::pages
")
