// SPDX-License-Identifier: Apache-2.0
#include "workflows/serve_options.hpp"

namespace tidemill::workflows {

void describe(Schema<SloOptions>& s) {
  s.field("ttft_ms", &SloOptions::ttft_ms,
          "Goal for the time to the first token of a response. While nothing decodes, each prefill "
          "chunk is planned to take at most an eighth of it.")
      .range(1, 3'600'000)
      .unit("milliseconds");
  s.field(
       "tpot_ms", &SloOptions::tpot_ms,
       "Goal for the time between two tokens of a response. It bounds an iteration that decodes: "
       "training gets what is left of 90% of it.")
      .range(1, 3'600'000)
      .unit("milliseconds");
}

void describe(Schema<TuningOptions>& s) {
  s.field(
       "max_running", &TuningOptions::max_running,
       "Maximum number of fine-tuning jobs that train at the same time; others wait. Without it, "
       "4, or fewer if memory is not enough for 4 jobs with sequences of job_tokens.")
      .range(1, 64);
  s.field("job_tokens", &TuningOptions::job_tokens,
          "Maximum length of a sequence to train on, with its last token, also for clients of "
          "Tinker's API. Each running job may hold as many positions of the KV cache, which are "
          "reserved in addition to serve.kv_bytes.")
      .range(16, 1 << 24)
      .unit("tokens");
  s.field("share", &TuningOptions::share,
          "Share of the time that jobs get if serve.slo leaves it to them. Jobs that are owed a "
          "second get all the time that serve.slo.tpot_ms leaves beside decoding.")
      .range(0.0, 0.99);
  s.field("publish_every_steps", &TuningOptions::publish_every_steps,
          "Steps after which a new version of a job's adapter is served while the job goes on; 0: "
          "the adapter is served when the job has ended.")
      .at_least(0);
  s.field(
      "example", &TuningOptions::example,
      "File that the server offers as the uploaded file file-quickstart, for the example on the "
      "jobs page. Its rows must have numbers as answers.");
}

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
      "Directory of uploaded files and fine-tuning jobs, which is made unless it exists. Only one "
      "server may use it. Without it, the server has no /v1/files and no fine-tuning jobs.");
  s.field("tuning", &ServerOptions::tuning, "How fine-tuning jobs share the server.");
  s.field(
      "slo", &ServerOptions::slo,
      "Latency goals, which bound the iterations of the server, with and without jobs. Requests "
      "that would miss them are not refused.");
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
          "Time to complete responses after a signal to stop, and as long again for the steps of "
          "fine-tuning jobs.")
      .range(0, 86400)
      .unit("seconds");
  s.field("checkpoints_path", &ServerOptions::checkpoints_path,
          "Folder for the checkpoints of clients that train adapters with Tinker's API, which the "
          "server makes. Without it, the server has no Tinker API.");
}

void describe(Schema<ServeOptions>& s) {
  s.absent({"max_model_len", "context_length"},
           "the model's context is the limit, or what serve.kv_bytes holds");
  s.absent({"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"},
           "a server is one process on one machine");
  s.absent({"enable_lora", "max_loras", "max_lora_rank", "max_cpu_loras"},
           "adapters can always be loaded; serve.adapter_bytes bounds their memory");
  s.field("model", &ServeOptions::model, "The model to serve.");
  s.field("serve", &ServeOptions::serve, "Address, API keys, limits and memory of the server.");
  s.field("seed", &ServeOptions::seed, "Seed of requests that set none.").at_least(0);
  s.field("device", &ServeOptions::device, "Threads and memory that the server may use.");
}

}  // namespace tidemill::workflows
