// oneDNN as a rival: matmul, softmax, matmul over the cache as it lies, in every form that a user could fairly choose;
// the fastest one is the rival. Primitives and memory objects are made outside the timed part, which flatters oneDNN: a
// real decode loop needs new ones whenever T grows.
#include "bench/rivals/rival.hpp"

#if KVROOF_HAVE_ONEDNN

#include "bench/rivals/onednn_chain.hpp"

namespace kvroof::bench {
namespace {

Rival as_rival(const BuiltChain& built, const ChainChoice& choice, const DecodeSetup& setup) {
  Rival rival;
  rival.impl = "onednn";
  rival.form = choice.name;
  rival.implementation = built.implementation;
  rival.version = onednn_version();
  rival.key_storage = rival.value_storage = setup.c.storage;
  rival.precision = choice.f32_queries ? Storage::f32 : setup.c.storage;
  rival.bytes = static_cast<std::int64_t>(setup.c.bytes());
  if (setup.c.latent_dim > 0 &&
      (choice.form == ChainForm::any || choice.form == ChainForm::dense_value))  // its V is a copy
    rival.bytes += setup.c.T * setup.c.latent_dim * static_cast<std::int64_t>(storage_bytes(setup.c.storage));
  rival.setup_ns = built.setup_ns;
  rival.layout_cost_ns = built.layout_ns;
  OneDnnChain* const chain = built.chain.get();
  rival.keep = built.chain;
  rival.call = [chain](std::int64_t visit) { run_chain(*chain, visit); };
  rival.out = [chain] {
    load_floats(onednn_storage(chain->out_type), chain->out.data(), chain->out_floats);
    return chain->out_floats.data();
  };
  return rival;
}

// The best of the forms that work on this setup.
Rival best_chain(const DecodeSetup& setup, Arena& arena) {
  const DecodeCase& c = setup.c;
  if (c.storage == Storage::int8)
    return failed_rival("onednn", "unsupported", "no attention over int8 rows with a float scale each");
  const bool token = c.order == RowOrder::token_major;
  std::vector<ChainChoice> forms = {
      {ChainForm::as_it_lies, false, token ? "chain_token_major" : "chain_head_major"},
      {ChainForm::any, false, "chain_any"},
  };
  // With more queries its softmax has no fast implementation.
  if (c.group() == 1) forms.push_back({ChainForm::key_source, false, "chain_key_source"});
  if (c.latent_dim > 0) forms.push_back({ChainForm::dense_value, false, "chain_dense_value"});  // else it is dense
  if (c.storage != Storage::f32)
    forms.push_back(
        {ChainForm::as_it_lies, true, token ? "chain_token_major_f32_queries" : "chain_head_major_f32_queries"});
  return best_form(setup, forms, [&](const ChainChoice& choice) {
    return as_rival(build_chain(setup, choice, arena), choice, setup);
  });
}

}  // namespace

Rival or_f32_cache(const DecodeSetup& setup, const std::function<Rival(const DecodeSetup&)>& best,
                   const std::function<const DecodeSetup*(std::string& reason)>& f32_setup) {
  limit_onednn_isa(setup.c.isa);
  Rival chain = best(setup);
  if (chain.status == "unsupported" && setup.c.storage != Storage::f32) {
    std::string reason;
    if (const DecodeSetup* f32 = f32_setup(reason)) {
      Rival rival = best(*f32);
      if (rival.status == "ok") {
        rival.form = "f32 cache, " + rival.form;
        chain = rival;
      }
    }
  }
  if (chain.status == "unsupported") chain.reason = std::string(isa_name(setup.c.isa)) + ": " + chain.reason;
  chain.version = onednn_version();
  return chain;
}

std::vector<Rival> onednn_rivals(const DecodeSetup& setup, Arena& arena,
                                 const std::function<const DecodeSetup*(std::string& reason)>& f32_setup) {
  const Rival chain = or_f32_cache(
      setup, [&](const DecodeSetup& s) { return best_chain(s, arena); }, f32_setup);
  if (setup.c.latent_dim > 0) return {chain};  // Graph has no V inside K's rows
  return {chain, onednn_graph_rival(setup)};
}

std::string onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
}

}  // namespace kvroof::bench

#else

namespace kvroof::bench {

std::vector<Rival> onednn_rivals(const DecodeSetup& setup, Arena&,
                                 const std::function<const DecodeSetup*(std::string&)>&) {
  if (setup.c.latent_dim > 0) return {failed_rival("onednn", "not_measured", "oneDNN not found")};
  return {failed_rival("onednn", "not_measured", "oneDNN not found"),
          failed_rival("onednn_graph", "not_measured", "oneDNN not found")};
}
std::vector<Rival> onednn_mla_rivals(const DecodeSetup&, bool, const std::vector<float>&, const std::vector<float>&,
                                     Arena&, const std::function<const DecodeSetup*(std::string&)>&) {
  return {failed_rival("onednn", "not_measured", "oneDNN not found")};
}
std::string onednn_version() { return ""; }

}  // namespace kvroof::bench

#endif
