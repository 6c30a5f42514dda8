// SPDX-License-Identifier: Apache-2.0
#include "launcher/additions.hpp"

namespace tidemill::launcher {

Result<Schema<configs::RunConfig>> run_schema(const Session& session) {
  auto schema = Schema<configs::RunConfig>::described();
  if (session.additions.schema) {
    TIDEMILL_RETURN_IF_ERROR(session.additions.schema(schema));
  }
  return schema;
}

}  // namespace tidemill::launcher
