// SPDX-License-Identifier: Apache-2.0
#include "workflows/serve_options.hpp"

namespace tidemill::workflows {

void describe(Schema<ServerOptions>& s) {
  s.field("host", &ServerOptions::host,
          "IP address to listen on. Without serve.keys_file, it must be one of the loopback "
          "interface.");
  s.field("port", &ServerOptions::port, "TCP port to listen on; 0: any free one.").range(0, 65535);
  s.field("name", &ServerOptions::name,
          "Name of the model in requests. Without it, the last part of model.path.")
      .also_called({"served_model_name"});
  s.field("host_names", &ServerOptions::host_names,
          "Further names by which clients may address the server, in the header Host. Other names "
          "are refused, because a web page could use them to reach the server (DNS rebinding).")
      .one_or_many()
      .also_called({"allowed_hosts"});
  s.field("keys_file", &ServerOptions::keys_file,
          "File of the keys that requests need, which `tidemill keys` makes. Without it, requests "
          "need none.")
      .also_called({"api_key"});
  s.field(
      "jobs_path", &ServerOptions::jobs_path,
      "Directory of uploaded files, which is made unless it exists. Only one server may use it. "
      "Without it, the server stores no files.");
  s.field("max_running", &ServerOptions::max_running,
          "Maximum number of responses generated at the same time; others wait.")
      .range(1, 4096)
      .also_called({"max_num_seqs", "max_running_requests"});
  s.field("kv_bytes", &ServerOptions::kv_bytes,
          "Memory for cached keys and values. Without it, enough for serve.max_running responses "
          "that fill the model's context, but at most a quarter of the memory that the process may "
          "use.")
      .at_least(1)
      .unit("bytes");
  s.field("adapter_bytes", &ServerOptions::adapter_bytes,
          "Memory for adapters that are loaded by name; 0: none can be loaded.")
      .at_least(0)
      .unit("bytes");
  s.field("drain_seconds", &ServerOptions::drain_seconds,
          "Time to complete responses after a signal to stop.")
      .range(0, 86400)
      .unit("seconds");
  s.field("checkpoints_path", &ServerOptions::checkpoints_path,
          "Folder for the checkpoints of clients that train adapters with Tinker's API, which the "
          "server makes. Without it, the server has no such API.");
}

void describe(Schema<ServeOptions>& s) {
  s.field("model", &ServeOptions::model, "The model to serve.");
  s.field("serve", &ServeOptions::serve, "Address, API keys, limits and memory of the server.");
  s.field("seed", &ServeOptions::seed, "Seed of requests that set none.").at_least(0);
  s.field("device", &ServeOptions::device, "Threads and memory that the server may use.");
}

}  // namespace tidemill::workflows
