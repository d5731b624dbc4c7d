package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Key is one key that a file can have.
type Key struct {
	// Name is its place; NAME stands for what people name themselves.
	Name string
	typ  reflect.Type
}

// Keys lists the keys of a user's file, profiles aside.
func Keys() []Key { return keysOf(reflect.TypeFor[File]()) }

func keysOf(t reflect.Type) []Key {
	var out []Key
	walkKeys("", t, &out)
	return out
}

func walkKeys(above string, t reflect.Type, out *[]Key) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if above != "" {
		*out = append(*out, Key{above, t})
	}
	switch t.Kind() {
	case reflect.Struct:
		for _, f := range fields(t) {
			if f.typ != reflect.TypeFor[map[string]File]() {
				walkKeys(joinKey(above, f.name), f.typ, out)
			}
		}
	case reflect.Map:
		walkKeys(above+".NAME", t.Elem(), out)
	}
}

// words are the keys whose values are some words.
func words(key string) []string {
	if w, ok := map[string][]string{
		"backend": Backends(), "git": {"ro", "commit"}, "mode": Modes(), "on_prompt": {"deny", "fail", "allow"},
		"models.NAME.provider":         {"openai", "replay"},
		"serve.tokens.NAME.roles.NAME": {"read", "run", "approve", "admin"},
		"policy.preset":                {"strict", "readonly", "default", "sandboxed", "ci"},
	}[key]; ok {
		return w
	}
	if parent, ok := strings.CutSuffix(key, ".NAME"); ok && slices.Contains([]string{"policy.default", "policy.tools", "policy.trusted_workspace_overrides"}, parent) {
		return []string{"auto", "prompt_once", "prompt", "deny"}
	}
	return nil
}

// classKeys are the keys whose NAMEs are classes of tools.
func classKeys() []string { return []string{"policy.default", "policy.trusted_workspace_overrides"} }

// descriptions say what each key is, for editors; keys that a flag can set have
// the flag's own.
func descriptions() map[string]string {
	d := map[string]string{
		"models":                                  "model profiles, by name; selecting one selects all of it",
		"models.NAME":                             "one model profile",
		"models.NAME.provider":                    "openai (and servers that speak its protocol), or replay",
		"models.NAME.model":                       "the model's name at its provider",
		"models.NAME.base_url":                    "address of the server, for another one than the provider's own",
		"models.NAME.api_key_env":                 "name of the environment variable that holds the key; never the key",
		"models.NAME.temperature":                 "sampling temperature",
		"models.NAME.max_output_tokens":           "tokens of one answer",
		"models.NAME.context_window":              "tokens that the model can take",
		"models.NAME.max_retries":                 "times that a request is sent again that failed before its answer began, 0 to 20; 2 by default",
		"models.NAME.max_retry_delay":             "longest wait before a request is sent again; 2m by default",
		"models.NAME.header_timeout":              "longest wait for the first byte of an answer; 10m by default",
		"models.NAME.idle_timeout":                "longest silence within an answer; 2m by default",
		"models.NAME.price":                       "US dollars per million tokens; without it the cost is unknown",
		"models.NAME.price.input":                 "of input",
		"models.NAME.price.cached_input":          "of input that the provider had cached",
		"models.NAME.price.output":                "of output",
		"keep_sessions":                           "how long records are kept whole; then their audit records stay alone",
		"keep_changes":                            "how long the changes of overlay runs wait to be applied",
		"submounts":                               "mounts inside the workspace that are accepted",
		"policy":                                  "which calls run, prompt or are refused",
		"policy.preset":                           "where the policy starts from",
		"policy.default":                          "modes by class",
		"policy.default.NAME":                     "mode of a class",
		"policy.tools":                            "modes by tool: a canonical name, its wire form, or server/*",
		"policy.tools.NAME":                       "mode of a tool",
		"policy.trusted_workspaces":               "folders (from / or ~/ on) at and below which WRITE is auto",
		"policy.trusted_workspace_overrides":      "modes by class in trusted workspaces",
		"policy.trusted_workspace_overrides.NAME": "mode of a class in trusted workspaces",
		"policy.dangerous_commands":               "patterns of commands that are asked about although they are auto: a name and what must be among its arguments",
		"limits":                                  "of a run; a key that is missing is no limit",
		"limits.session":                          "of a session, however many turns it has",
		"limits.session.max_tool_calls":           "tool calls in the session",
		"limits.session.max_tokens":               "input and output tokens in the session",
		"limits.session.max_cost_usd":             "US dollars that the session may cost, by the prices of its model",
		"limits.session.timeout":                  "wall time of the session, from when it was opened",
		"limits.timeout":                          "wall time of the run",
		"resources":                               "of a sandbox",
		"resources.home":                          "size of the home folder in the sandbox",
		"resources.shm":                           "size of /dev/shm in the sandbox",
		"sandbox":                                 "how sandboxes are started",
		"sandbox.pool":                            "sandboxes that are started ahead, for a process with many sessions",
		"docker":                                  "the Docker engine",
		"host_image":                              "what image host has beside the machine's /usr",
		"host_image.toolchains":                   "absolute folders that are shown read-only at their own path",
		"host_image.mask":                         "folders below /usr or a toolchain that are hidden",
		"images":                                  "how images are fetched",
		"images.plain_http":                       "registries, as host or host:port, that are spoken to without TLS",
		"programs":                                "absolute paths of what is not beside the executable or on PATH",
	}
	maps.Copy(d, serveDescriptions())
	maps.Copy(d, fetchDescriptions())
	maps.Copy(d, toolDescriptions())
	for _, name := range []string{"caisson-guest", "runsc", "runc", "buildctl", "buildah"} {
		d["programs."+name] = "absolute path of " + name
	}
	for key, setting := range settingsByKey() {
		d[key] = setting.Usage
	}
	return d
}

// Defaults returns the built-in values of settings, by their flags.
func Defaults() map[string]string {
	settings, out := settingsByKey(), map[string]string{}
	for _, v := range flatten(builtin()) {
		if s, ok := settings[v.Key]; ok {
			out[s.Flag] = v.Text
		}
	}
	return out
}

// settingsByKey are the settings that a flag and a variable can give, by their
// keys in a file.
func settingsByKey() map[string]Setting {
	byFlag := map[string]string{
		"memory": "resources.memory", "cpus": "resources.cpus", "pids": "resources.pids", "tmp-size": "resources.tmp", "open-files": "resources.open_files",
		"command-time": "resources.command_time", "docker-host": "docker.host", "docker-runtime": "docker.runtime", "max-rounds": "limits.max_rounds",
		"max-tool-calls": "limits.max_tool_calls", "max-tokens": "limits.max_tokens", "max-cost-usd": "limits.max_cost_usd", "timeout": "limits.timeout", "policy": "policy.preset", "fetch-allow": "fetch.allow",
	}
	out := map[string]Setting{}
	for _, s := range Settings() {
		key, ok := byFlag[s.Flag]
		if !ok {
			key = strings.ReplaceAll(s.Flag, "-", "_")
		}
		out[key] = s
	}
	return out
}
