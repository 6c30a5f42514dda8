// SPDX-License-Identifier: Apache-2.0
// The module that reads Parquet files with Apache Arrow. No other source includes Arrow's headers.
//
// Arrow decodes a row group in batches of about `kBatchBytes`. All its memory comes from a pool
// with an upper limit, and it reads column chunks in blocks, so a row group may be larger than
// memory. Arrow reports errors as statuses, and some as exceptions; both end here. Uses nothing of
// ours but what headers define, because the module is not linked with our libraries.
#include <algorithm>
#include <array>
#include <arrow/array.h>
#include <arrow/io/interfaces.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/result.h>
#include <arrow/type.h>
#include <arrow/util/key_value_metadata.h>
#include <charconv>
#include <cmath>
#include <cstring>
#include <exception>
#include <parquet/arrow/reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <string>
#include <utility>

#include "storage/dataset/parquet/module.hpp"

namespace tidemill::storage {
namespace {

constexpr std::int64_t kBatchBytes = 4 << 20U;
constexpr std::int64_t kMaxBatchRows = 1024;
constexpr std::int64_t kColumnBufferBytes = 64 << 10U;

// -- the file ------------------------------------------------------------------------------------

// The input as Arrow reads files. Keeps the first failure of `read_at`.
class InputFile final : public arrow::io::RandomAccessFile {
public:
  InputFile(const ParquetInput& input, arrow::MemoryPool* pool) : input_(input), pool_(pool) {}

  [[nodiscard]] const Status& failure() const { return failure_; }

  arrow::Status Close() override {
    closed_ = true;
    return {};
  }
  [[nodiscard]] bool closed() const override { return closed_; }
  [[nodiscard]] arrow::Result<std::int64_t> Tell() const override { return position_; }
  arrow::Result<std::int64_t> GetSize() override { return size(); }
  arrow::Status Seek(std::int64_t position) override {
    if (position < 0 || position > size()) {
      return arrow::Status::IOError("a position outside the file");
    }
    position_ = position;
    return {};
  }
  arrow::Result<std::int64_t> Read(std::int64_t count, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const std::int64_t bytes, ReadAt(position_, count, out));
    position_ += bytes;
    return bytes;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(std::int64_t count) override {
    ARROW_ASSIGN_OR_RAISE(std::shared_ptr<arrow::Buffer> buffer, ReadAt(position_, count));
    position_ += buffer->size();
    return buffer;
  }
  arrow::Result<std::int64_t> ReadAt(std::int64_t position, std::int64_t count,
                                     void* out) override {
    ARROW_ASSIGN_OR_RAISE(const std::int64_t bytes, bytes_at(position, count));
    const Status read =
        input_.read_at(static_cast<std::uint64_t>(position),
                       {static_cast<std::byte*>(out), static_cast<std::size_t>(bytes)});
    if (!read.ok()) {
      failure_ = failure_.ok() ? read : failure_;
      return arrow::Status::IOError("cannot be read");
    }
    return bytes;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(std::int64_t position,
                                                       std::int64_t count) override {
    ARROW_ASSIGN_OR_RAISE(const std::int64_t bytes, bytes_at(position, count));
    ARROW_ASSIGN_OR_RAISE(std::unique_ptr<arrow::ResizableBuffer> buffer,
                          arrow::AllocateResizableBuffer(bytes, pool_));
    ARROW_RETURN_NOT_OK(ReadAt(position, bytes, buffer->mutable_data()));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }

private:
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(input_.size_bytes); }
  // How many of `count` bytes the file has at `position`.
  [[nodiscard]] arrow::Result<std::int64_t> bytes_at(std::int64_t position,
                                                     std::int64_t count) const {
    if (position < 0 || count < 0 || position > size()) {
      return arrow::Status::IOError("a position outside the file");
    }
    return std::min(count, size() - position);
  }

  const ParquetInput& input_;
  arrow::MemoryPool* pool_;
  std::int64_t position_ = 0;
  bool closed_ = false;
  Status failure_;
};

// -- types ---------------------------------------------------------------------------------------

// Finds the first column, or member of one, whose type JSON lacks.
Status check_type(const arrow::DataType& type, const std::string& path) {
  switch (type.id()) {
    case arrow::Type::NA:
    case arrow::Type::BOOL:
    case arrow::Type::INT8:
    case arrow::Type::INT16:
    case arrow::Type::INT32:
    case arrow::Type::INT64:
    case arrow::Type::UINT8:
    case arrow::Type::UINT16:
    case arrow::Type::UINT32:
    case arrow::Type::UINT64:
    case arrow::Type::FLOAT:
    case arrow::Type::DOUBLE:
    case arrow::Type::STRING:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::STRING_VIEW: return {};
    case arrow::Type::DICTIONARY:
      return check_type(*static_cast<const arrow::DictionaryType&>(type).value_type(), path);
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST: return check_type(*type.field(0)->type(), path + "[]");
    case arrow::Type::STRUCT:
      for (const std::shared_ptr<arrow::Field>& member : type.fields()) {
        if (Status status = check_type(*member->type(), path + "." + member->name());
            !status.ok()) {
          return status;
        }
      }
      return {};
    default:
      return invalid_argument("column " + path + " has the type " + type.ToString() +
                              ", which JSON lacks; remove the column or convert it to text");
  }
}

Status check_columns(const arrow::Schema& schema) {
  if (schema.num_fields() == 0) {
    return invalid_argument("has no columns");
  }
  for (const std::shared_ptr<arrow::Field>& column : schema.fields()) {
    if (Status status = check_type(*column->type(), column->name()); !status.ok()) {
      return status;
    }
  }
  return {};
}

// -- rows as JSON --------------------------------------------------------------------------------

// Writes the JSON of one row. Stops when the text is longer than allowed or a value has no JSON.
class RowWriter {
public:
  explicit RowWriter(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // Writes row `index` of `batch`.
  void write(const arrow::RecordBatch& batch, std::int64_t index) {
    text_.clear();
    too_long_ = false;
    problem_ = {};
    text_ += '{';
    for (int i = 0; i < batch.num_columns() && !stopped(); ++i) {
      column_ = i;
      begin_member(batch.column_name(i), i == 0);
      write_value(*batch.column(i), index);
    }
    text_ += '}';
    if (!problem_.ok()) {
      problem_ = invalid_argument(batch.column_name(column_) + ": " + problem_.message());
    }
  }

  [[nodiscard]] ParquetRow row(std::uint64_t number) const {
    ParquetRow row;
    row.number = number;
    row.problem = problem_;
    row.too_long = too_long();
    if (!row.too_long && problem_.ok()) {
      row.text = text_;
    }
    return row;
  }

private:
  [[nodiscard]] bool too_long() const { return too_long_ || text_.size() > max_bytes_; }
  [[nodiscard]] bool stopped() const { return too_long() || !problem_.ok(); }

  void begin_member(const std::string& name, bool first) {
    if (!first) {
      text_ += ',';
    }
    write_text(name);
    text_ += ':';
  }

  // Invalid UTF-8 passes unchanged. The parser of rows refuses it.
  void write_text(std::string_view text) {
    if (text.size() > max_bytes_) {
      too_long_ = true;
      return;
    }
    constexpr std::array<char, 17> kDigits{"0123456789abcdef"};
    text_ += '"';
    for (const char c : text) {
      const auto code = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (code < 0x20) {
        text_ += "\\u00";
        text_ += kDigits[code >> 4U];
        text_ += kDigits[code & 15U];
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  // Writes the shortest text that reads back as the same number.
  template <class Number>
  void write_number(Number number) {
    std::array<char, 32> digits{};
    char* const end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    text_.append(digits.data(), end);
  }

  // A real keeps a fraction or an exponent, without which it would be an integer.
  template <class Real>
  void write_real(Real real) {
    if (!std::isfinite(real)) {
      problem_ = invalid_argument("is not a finite number");
      return;
    }
    const std::size_t start = text_.size();
    write_number(real);
    if (text_.find_first_of(".e", start) == std::string::npos) {
      text_ += ".0";
    }
  }

  template <class Array>
  static auto value_of(const arrow::Array& array, std::int64_t index) {
    return static_cast<const Array&>(array).GetView(index);
  }

  template <class List>
  void write_list(const arrow::Array& array, std::int64_t index) {
    const auto& list = static_cast<const List&>(array);
    const std::int64_t begin = list.value_offset(index);
    const std::int64_t end = begin + list.value_length(index);
    text_ += '[';
    for (std::int64_t i = begin; i < end && !stopped(); ++i) {
      if (i != begin) {
        text_ += ',';
      }
      write_value(*list.values(), i);
    }
    text_ += ']';
  }

  void write_struct(const arrow::Array& array, std::int64_t index) {
    const auto& value = static_cast<const arrow::StructArray&>(array);
    text_ += '{';
    for (int i = 0; i < value.num_fields() && !stopped(); ++i) {
      begin_member(value.type()->field(i)->name(), i == 0);
      write_value(*value.field(i), index);
    }
    text_ += '}';
  }

  // Arrow does not check the indices of a file against its dictionary.
  void write_entry(const arrow::Array& array, std::int64_t index) {
    const auto& entries = static_cast<const arrow::DictionaryArray&>(array);
    const std::int64_t entry = entries.GetValueIndex(index);
    if (entry < 0 || entry >= entries.dictionary()->length()) {
      problem_ = invalid_argument("has an index outside its dictionary");
      return;
    }
    write_value(*entries.dictionary(), entry);
  }

  void write_value(const arrow::Array& array, std::int64_t index) {
    if (array.IsNull(index)) {
      text_ += "null";
      return;
    }
    switch (array.type_id()) {
      case arrow::Type::BOOL:
        text_ += value_of<arrow::BooleanArray>(array, index) ? "true" : "false";
        break;
      case arrow::Type::INT8: write_number(value_of<arrow::Int8Array>(array, index)); break;
      case arrow::Type::INT16: write_number(value_of<arrow::Int16Array>(array, index)); break;
      case arrow::Type::INT32: write_number(value_of<arrow::Int32Array>(array, index)); break;
      case arrow::Type::INT64: write_number(value_of<arrow::Int64Array>(array, index)); break;
      case arrow::Type::UINT8: write_number(value_of<arrow::UInt8Array>(array, index)); break;
      case arrow::Type::UINT16: write_number(value_of<arrow::UInt16Array>(array, index)); break;
      case arrow::Type::UINT32: write_number(value_of<arrow::UInt32Array>(array, index)); break;
      case arrow::Type::UINT64: write_number(value_of<arrow::UInt64Array>(array, index)); break;
      case arrow::Type::FLOAT: write_real(value_of<arrow::FloatArray>(array, index)); break;
      case arrow::Type::DOUBLE: write_real(value_of<arrow::DoubleArray>(array, index)); break;
      case arrow::Type::STRING: write_text(value_of<arrow::StringArray>(array, index)); break;
      case arrow::Type::LARGE_STRING:
        write_text(value_of<arrow::LargeStringArray>(array, index));
        break;
      case arrow::Type::STRING_VIEW:
        write_text(value_of<arrow::StringViewArray>(array, index));
        break;
      case arrow::Type::DICTIONARY: write_entry(array, index); break;
      case arrow::Type::LIST: write_list<arrow::ListArray>(array, index); break;
      case arrow::Type::LARGE_LIST: write_list<arrow::LargeListArray>(array, index); break;
      case arrow::Type::FIXED_SIZE_LIST: write_list<arrow::FixedSizeListArray>(array, index); break;
      case arrow::Type::STRUCT: write_struct(array, index); break;
      default: problem_ = invalid_argument("has a type that JSON lacks"); break;
    }
  }

  std::uint64_t max_bytes_;
  std::string text_;
  bool too_long_ = false;  // the text lacks a value that is longer than allowed
  Status problem_;
  int column_ = 0;
};

// -- reading -------------------------------------------------------------------------------------

class ParquetReader {
public:
  ParquetReader(const ParquetInput& input, const ParquetLimits& limits, const OnParquetRow& on_row)
      : pool_(arrow::system_memory_pool(), kMaxParquetBytes),
        file_(std::make_shared<InputFile>(input, &pool_)),
        limits_(limits),
        on_row_(on_row),
        writer_(limits.max_row_bytes) {}

  Status read() {
    if (arrow::Status status = open(); !status.ok()) {
      return status_of(status);
    }
    std::shared_ptr<arrow::Schema> schema;
    if (arrow::Status status = reader_->GetSchema(&schema); !status.ok()) {
      return status_of(status);
    }
    if (Status status = check_columns(*schema); !status.ok()) {
      return status;
    }
    const parquet::FileMetaData& file = *reader_->parquet_reader()->metadata();
    if (file.num_rows() > 0 && static_cast<std::uint64_t>(file.num_rows()) > limits_.max_rows) {
      return {Errc::kResourceExhausted,
              "has more than " + std::to_string(limits_.max_rows) + " rows"};
    }
    for (int group = 0; group < file.num_row_groups(); ++group) {
      if (Status status = read_group(group); !status.ok()) {
        return status;
      }
    }
    return {};
  }

private:
  arrow::Status open() {
    parquet::ReaderProperties properties(&pool_);
    properties.enable_buffered_stream();
    properties.set_buffer_size(kColumnBufferBytes);
    properties.set_thrift_container_size_limit(kMaxParquetListed);
    properties.set_schema_depth_limit(kMaxParquetDepth);
    properties.set_page_checksum_verification(true);
    parquet::ArrowReaderProperties decoding(/*use_threads=*/false);
    decoding.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    ARROW_RETURN_NOT_OK(builder.Open(file_, properties));
    ARROW_ASSIGN_OR_RAISE(reader_, builder.memory_pool(&pool_)->properties(decoding)->Build());
    return {};
  }

  Status read_group(int index) {
    const auto group = reader_->parquet_reader()->metadata()->RowGroup(index);
    const std::int64_t num_rows = group->num_rows();
    if (num_rows < 0 || static_cast<std::uint64_t>(num_rows) > limits_.max_rows) {
      return invalid_argument("row group " + std::to_string(index) + " is damaged");
    }
    const std::int64_t row_bytes = group->total_byte_size() / std::max<std::int64_t>(num_rows, 1);
    reader_->set_batch_size(std::clamp<std::int64_t>(
        kBatchBytes / std::max<std::int64_t>(row_bytes, 1), 1, kMaxBatchRows));
    auto batches = reader_->GetRecordBatchReader({index});
    if (!batches.ok()) {
      return status_of(batches.status());
    }
    const std::uint64_t last = number_ + static_cast<std::uint64_t>(num_rows);
    for (;;) {
      std::shared_ptr<arrow::RecordBatch> batch;
      arrow::Status status = (*batches)->ReadNext(&batch);
      if (status.ok() && batch != nullptr) {
        status = batch->Validate();
      }
      if (!status.ok()) {
        return status_of(status);
      }
      if (batch == nullptr) {
        break;
      }
      if (static_cast<std::uint64_t>(batch->num_rows()) > last - number_) {
        return invalid_argument("row group " + std::to_string(index) + " has too many rows");
      }
      if (Status given = pass_on(*batch); !given.ok()) {
        return given;
      }
    }
    return number_ == last
               ? Status()
               : invalid_argument("row group " + std::to_string(index) + " lacks some of its rows");
  }

  Status pass_on(const arrow::RecordBatch& batch) {
    for (std::int64_t i = 0; i < batch.num_rows(); ++i) {
      writer_.write(batch, i);
      if (Status status = on_row_(writer_.row(++number_)); !status.ok()) {
        return status;
      }
    }
    return {};
  }

  [[nodiscard]] Status status_of(const arrow::Status& status) const {
    if (!file_->failure().ok()) {
      return file_->failure();
    }
    if (status.IsOutOfMemory()) {
      return invalid_argument("needs more than " + std::to_string(kMaxParquetBytes >> 20U) +
                              " MiB to decode; write it with smaller pages or shorter rows");
    }
    const std::string& message = status.message();
    return invalid_argument("is not a Parquet file that can be read: " +
                            message.substr(0, message.find('\n')));
  }

  // In this order: the reader uses the file, and both use the pool.
  arrow::CappedMemoryPool pool_;
  std::shared_ptr<InputFile> file_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  const ParquetLimits& limits_;
  const OnParquetRow& on_row_;
  RowWriter writer_;
  std::uint64_t number_ = 0;  // of the row that was passed on last
};

}  // namespace

// The program looks it up by `kReadParquetFunction`.
extern "C" __attribute__((visibility("default"))) void tidemill_read_parquet_1(
    const ParquetInput& input, const ParquetLimits& limits, const OnParquetRow& on_row,
    Status& outcome) {
  try {
    outcome = ParquetReader(input, limits, on_row).read();
  } catch (const std::bad_alloc&) {
    outcome = Status(Errc::kResourceExhausted, "not enough memory to read the Parquet file");
  } catch (const std::exception& error) {
    const std::string message = error.what();
    outcome = invalid_argument("is not a Parquet file that can be read: " +
                               message.substr(0, message.find('\n')));
  }
}

}  // namespace tidemill::storage
