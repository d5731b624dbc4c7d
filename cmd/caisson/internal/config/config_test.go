package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// fault is a file with a fault, its place and a part of its message.
type fault struct {
	text         string
	line, column int
	message      string
}

func checkFaults(t *testing.T, faults map[string]fault) {
	t.Helper()
	for name, f := range faults {
		t.Run(name, func(t *testing.T) {
			path := write(t, "config.yaml", f.text)
			_, err := Load(Options{Path: path})
			e, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("got %v", err)
			}
			if e.Where != path && e.File != path || e.Line != f.line || e.Column != f.column || !strings.Contains(e.Message, f.message) {
				t.Errorf("%v, want %d:%d: %s", e, f.line, f.column, f.message)
			}
		})
	}
}

func TestBadFilesAreRefusedWithTheirPlace(t *testing.T) {
	for name, tc := range map[string]struct {
		text         string
		line, column int
		message      string
		hint         string
	}{
		"unknown key":        {"backend: runc\nbackned: docker\n", 2, 1, `unknown field "backned"`, "did you mean backend?"},
		"unknown nested key": {"limits:\n  max_rounds: 3\n  max_round: 4\n", 3, 3, `unknown field "max_round"`, "did you mean max_rounds?"},
		"key of a section":   {"image: host\nmax_rounds: 3\n", 2, 1, `unknown field "max_rounds"`, "did you mean limits.max_rounds?"},
		"class as a key":     {"policy: {execute: deny}\n", 1, 10, `unknown field "execute"`, "did you mean policy.default.execute or policy.relaxed_modes.execute?"},
		"key of a profile":   {"profiles:\n  ci:\n    polcy: {}\n", 3, 5, `unknown field "polcy"`, "did you mean policy?"},
		"key of a workspace": {"workspaces: {/a: {limits: {timout: 1h}}}\n", 1, 28, `unknown field "timout"`, "did you mean timeout?"},
		"key of a model":     {"models:\n  fast:\n    modle: x\n", 3, 5, `unknown field "modle"`, "did you mean model?"},
		"key of a server":    {"mcpServers:\n  a: {comand: x}\n", 2, 7, `unknown field "comand"`, "did you mean command?"},
		"key in a list":      {"mounts:\n  - {form: /a, to: /b}\n", 2, 6, `unknown field "form"`, "did you mean from?"},
		"key like no other":  {"docker:\n  socket: x\n", 2, 3, `unknown field "socket"`, "the keys here are host, runtime"},
		"in a long section":  {"nothing: x\n", 1, 1, `unknown field "nothing"`, "the keys are listed in docs/settings.md"},
		"word for a switch":  {"stream: yess\n", 1, 9, "write true or false", ""},
		"list for a section": {"limits: [a]\n", 1, 9, "keys with their values are needed here, such as {key: value}", ""},
		"word for a list":    {"submounts: a\n", 1, 12, "a list is needed here, such as [a, b]", ""},
		"duplicate":          {"image: host\nimage: host\n", 2, 1, `mapping key "image" already defined at [1:1]`, ""},
		"wrong type":         {"image: [host]\n", 1, 8, "write one value, not a list or section", ""},
		"list for a number":  {"limits:\n  max_rounds: [1]\n", 2, 15, "write one value, not a list or section", ""},
		"zero limit":         {"limits:\n  max_rounds: 0\n", 2, 15, `invalid count "0": want a whole number of at least 1; leave the setting out for no limit`, ""},
		"bad size":           {"resources: {memory: 2 potatoes}\n", 1, 21, `invalid size "2 potatoes": want bytes or a number with a unit, such as 512m or 2GiB`, ""},
		"bad time":           {"grace: 5\n", 1, 8, `invalid duration "5": want a number with a unit, such as 90s or 10m`, ""},
		"unset variable":     {"image: ${NOPE}\n", 1, 8, "${NOPE} is not set in the environment; set it, or write ${NOPE:-default}", ""},
		"command":            {"image: ${$(id)}\n", 1, 8, "${$(id)} names no variable", ""},
		"two documents":      {"image: host\n---\nimage: host\n", 3, 6, "a second document; a configuration file holds one", ""},
		"nested profiles":    {"profiles: {a: {profiles: {b: {}}}}\n", 0, 0, "profile a holds profiles or workspaces of its own", ""},
		"nested workspaces":  {"workspaces: {/a: {profiles: {b: {}}}}\n", 0, 0, "workspace /a holds profiles or workspaces of its own", ""},
		"relative workspace": {"workspaces: {a: {}}\n", 0, 0, "workspaces: a is not an absolute path", ""},
		"no YAML":            {"image: 'host\n", 1, 8, "could not find end character of single-quoted text", ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, "config.yaml", tc.text)
			_, err := Load(Options{Path: path})
			e, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("got %v", err)
			}
			if e.Hint != tc.hint && tc.hint != "" {
				t.Errorf("hint %q, want %q", e.Hint, tc.hint)
			}
			want := Error{Where: path, Line: tc.line, Column: tc.column, Message: tc.message, Hint: e.Hint}
			if diff := cmp.Diff(want, *e); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestLayers(t *testing.T) {
	path := write(t, "config.yaml", `
# the user's
backend: runc
image: ${IMG:-rootfs:/x}
limits: {max_rounds: 9, timeout: 1h}
resources: {memory: 1GiB, cpus: 0.5}
profiles:
  ci: {backend: docker, limits: {max_rounds: 8}, env: {A: profile, B: profile}}
workspaces:
  ~/app: {limits: {max_tokens: 1}, image: debian, env: {A: workspace}}
  /other: {image: other}
`)
	home := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(home, "real"), 0o755), os.Symlink("real", filepath.Join(home, "app"))); err != nil {
		t.Fatal(err)
	}
	workspace, err := filepath.EvalSymlinks(filepath.Join(home, "real"))
	if err != nil {
		t.Fatal(err)
	}
	flags := File{Bounds: Bounds{Limits: Limits{Rounds: new(Count(6))}}}
	c, err := Load(Options{
		Path: path, Profile: "ci", Workspace: workspace, Flags: flags,
		Environ: []string{"HOME=" + home, "CAISSON_MAX_ROUNDS=7", "CAISSON_MAX_TOKENS=100", "CAISSON_CONFIG=x", "OTHER=1"},
		Others:  []string{"CAISSON_CONFIG"},
	})
	if err != nil {
		t.Fatal(err)
	}
	type got struct {
		Backend, Image string
		Budget         limits.Budget
		Memory, CPUs   int64
		PIDs           int64
		Sources        []string
	}
	r, err := c.SandboxResources()
	if err != nil {
		t.Fatal(err)
	}
	var sources []string
	for _, s := range c.Sources {
		sources = append(sources, s.Name)
	}
	want := got{
		"docker", "debian",
		limits.Budget{Rounds: new(int64(6)), Tokens: new(int64(100)), WallTime: new(time.Hour)},
		1 << 30, 500, 256,
		[]string{"built-in", "user", "profile", "workspace", "environment", "flags"},
	}
	if diff := cmp.Diff(map[string]string{"A": "workspace", "B": "profile"}, c.Env); diff != "" {
		t.Errorf("env (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, got{*c.Backend, *c.Image, c.Limits.Budget(), r.MemoryBytes, r.MilliCPUs, r.PIDs, sources}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUnknownNames(t *testing.T) {
	path := write(t, "config.yaml", "profiles: {a: {}, b: {}}")
	for name, tc := range map[string]struct {
		opts Options
		want string
	}{
		"variable": {Options{Environ: []string{"CAISSON_MODLE=x"}}, "CAISSON_MODLE: no setting has this environment variable"},
		"value":    {Options{Environ: []string{"CAISSON_BACKEND=podman"}}, `CAISSON_BACKEND: "podman" is none of auto, docker, gvisor, runc`},
		"profile":  {Options{Path: path, Profile: "c"}, path + ": there is no profile c; it has a, b"},
		"file":     {Options{Path: "/does/not/exist.yaml", Needed: true}, "/does/not/exist.yaml: no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(tc.opts)
			if err == nil || !strings.HasSuffix(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

// TestUnreadableFileBlamesItsOwnPlace: the hint names the variable only if it named the
// file.
func TestUnreadableFileBlamesItsOwnPlace(t *testing.T) {
	for _, named := range []bool{false, true} {
		_, err := Load(Options{Path: t.TempDir(), Needed: named})
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Message != "is a directory" || strings.Contains(e.Hint, "CAISSON_CONFIG") != named {
			t.Errorf("named by CAISSON_CONFIG %v: %v, hint %q", named, err, e.Hint)
		}
	}
}

func TestRequirementsOnlyTighten(t *testing.T) {
	uid := os.Getuid()
	req := func(t *testing.T, text string) string {
		t.Helper()
		path := write(t, "requirements.yaml", text)
		for _, p := range []string{path, filepath.Dir(path)} {
			if err := os.Chmod(p, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		return path
	}
	t.Run("numbers", func(t *testing.T) {
		c, err := Load(Options{
			Flags:           File{Bounds: Bounds{Limits: Limits{Rounds: new(Count(5)), Tokens: new(Count(500))}, RefuseLost: new(false)}},
			Requirements:    req(t, "refuse_lost: true\ninstruction_files: false\nlimits: {max_rounds: 10, max_tokens: 100, max_tool_calls: 7}\nresources: {memory: 8GiB, pids: 100}"),
			RequirementsUID: uid,
		})
		if err != nil {
			t.Fatal(err)
		}
		if !*c.File.RefuseLost || *c.File.InstructionFiles {
			t.Error("refuse_lost and instruction_files of the requirements do not hold")
		}
		want := []int64{5, 100, 7, 2 << 30, 100}
		got := []int64{int64(*c.Limits.Rounds), int64(*c.Limits.Tokens), int64(*c.Limits.ToolCalls), int64(*c.File.Resources.Memory), int64(*c.File.Resources.PIDs)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("choices", func(t *testing.T) {
		path := req(t, "backends: [gvisor]\nimages: [host, 'debian:*']\ngit: ro\nuser: owner\nmode: overlay\nisolation: namespaces\non_prompt: deny\nrefuse_caller_owns_files: true\nrefuse_system_workspace: true\nrefuse_writable_root: true")
		for flag, wants := range map[string]map[string]bool{
			"backend":                 {"auto": true, "gvisor": true, "docker": false},
			"image":                   {"host": true, "debian:12": true, "evil": false},
			"git":                     {"ro": true, "commit": false},
			"user":                    {"owner": true, "root": false},
			"mode":                    {"overlay": true, "bind": false},
			"isolation":               {"namespaces": true, "auto": false, "process": false},
			"on-prompt":               {"deny": true, "fail": false, "allow": false},
			"caller-owns-files":       {"false": true, "true": false},
			"accept-system-workspace": {"false": true, "true": false},
			"writable-root":           {"false": true, "true": false},
		} {
			for v, ok := range wants {
				var f File
				for _, s := range Settings() {
					if s.Flag == flag {
						if err := s.Set(&f, v, "test"); err != nil {
							t.Fatal(err)
						}
					}
				}
				if _, err := Load(Options{Flags: f, Requirements: path, RequirementsUID: uid}); (err == nil) != ok {
					t.Errorf("%s=%s: %v, want allowed %v", flag, v, err, ok)
				}
			}
		}
	})
	t.Run("toolchains are mounts", func(t *testing.T) {
		dir := t.TempDir()
		for mounts, ok := range map[string]bool{"[]": false, "[" + dir + "]": true} {
			f := File{HostImage: HostImage{Toolchains: []string{dir}}}
			if _, err := Load(Options{Flags: f, Requirements: req(t, "mounts: "+mounts), RequirementsUID: uid}); (err == nil) != ok {
				t.Errorf("mounts %s: %v, want allowed %v", mounts, err, ok)
			}
		}
	})
	t.Run("nobody chose", func(t *testing.T) {
		for _, f := range fieldsOf(reflect.TypeFor[Bounds]()) {
			for _, word := range f.tagWords("tighten") {
				c, err := Load(Options{Builtin: File{Bounds: Bounds{Mode: new("overlay")}}, Requirements: req(t, f.name+": "+word), RequirementsUID: uid})
				if err != nil {
					t.Errorf("%s: %s: %v", f.name, word, err)
					continue
				}
				if got, want := reflect.ValueOf(c.Bounds).FieldByIndex(f.index), reflect.ValueOf(c.Requirements.Bounds).FieldByIndex(f.index); f.isMilder(got, want) {
					t.Errorf("%s is %s, %s is required", f.name, wordOf(got), word)
				}
			}
		}
	})
	t.Run("isolation", func(t *testing.T) {
		for text, want := range map[string]sandbox.Isolation{"git: ro": "", "isolation: auto": "", "isolation: process": "", "isolation: namespaces": sandbox.IsolationNamespaces} {
			c, err := Load(Options{Requirements: req(t, text), RequirementsUID: uid})
			if err != nil || c.SandboxIsolation() != want {
				t.Errorf("%q: %v, %q, want %q", text, err, c.SandboxIsolation(), want)
			}
		}
		c, err := Load(Options{Flags: File{Bounds: Bounds{Isolation: new("process")}}, Requirements: req(t, "isolation: process"), RequirementsUID: uid})
		if err != nil || c.SandboxIsolation() != sandbox.IsolationProcess {
			t.Errorf("asked for: %v, %q", err, c.SandboxIsolation())
		}
	})
	t.Run("policy", func(t *testing.T) {
		c, err := Load(Options{
			Requirements:    req(t, "policy: {default: {execute: prompt}, tools: {write_file: deny, read_file: auto}}"),
			RequirementsUID: uid,
		})
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.ToolPolicy("sandboxed")
		if err != nil {
			t.Fatal(err)
		}
		for name, tc := range map[string]struct {
			class tools.Class
			want  policy.Mode
		}{
			"shell":      {tools.ClassExecute, policy.ModePrompt},
			"write_file": {tools.ClassWrite, policy.ModeDeny},
			"patch_file": {tools.ClassWrite, policy.ModeAuto},
			"read_file":  {tools.ClassRead, policy.ModeAuto},
			"fetch":      {tools.ClassNetwork, policy.ModePrompt},
		} {
			got := p.Decide(tools.Definition{Name: tools.Name(name), Class: tc.class, Runs: tools.PlaceSandbox}, "")
			if got.Mode != tc.want {
				t.Errorf("%s: %+v, want %s", name, got, tc.want)
			}
		}
	})
	t.Run("writable by others", func(t *testing.T) {
		for _, which := range []func(string) string{func(p string) string { return p }, filepath.Dir} {
			path := req(t, "git: ro")
			if err := os.Chmod(which(path), 0o775); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(Options{Requirements: path, RequirementsUID: uid}); err == nil {
				t.Errorf("%s writable by its group was accepted", which(path))
			}
		}
	})
	t.Run("of another user", func(t *testing.T) {
		if _, err := Load(Options{Requirements: req(t, "git: ro"), RequirementsUID: uid + 1}); err == nil {
			t.Error("accepted")
		}
	})
	t.Run("absent", func(t *testing.T) {
		if _, err := Load(Options{Requirements: filepath.Join(t.TempDir(), "no")}); err != nil {
			t.Error(err)
		}
	})
}

func TestModelSelection(t *testing.T) {
	file := write(t, "config.yaml", `
models:
  local: {model: qwen3, base_url: "http://127.0.0.1:1/v1"}
  keyed: {model: m, base_url: "https://x/v1", api_key_env: X_KEY, price: {input: 1, cached_input: 0.1, output: 2}}
  api: {model: m, api: chat}
  elsewhere: {model: m, api: responses, base_url: "http://h/v1"}
  tiered: {model: m, base_url: "https://x/v1", price: {input: 1, output: 2, tiers: [{above: 1000, input: 2, cached_input: 0.2, output: 3}, {above: 2000, input: 4, output: 6}]}}
`)
	for name, tc := range map[string]struct {
		model   string
		environ []string
		want    SelectedModel
		err     string
	}{
		"key alone": {"", []string{"OPENAI_API_KEY=k", "ANTHROPIC_API_KEY=a"}, SelectedModel{
			Profile: "openai/gpt-6.2-sol", Provider: "openai", ModelOptions: loop.ModelOptions{Model: "gpt-6.2-sol", APIKey: "k"}, API: "responses", KeyEnv: "OPENAI_API_KEY", KeyNeeded: true,
			Price: new(openAIWritePrice(2, 0.10, 10)), ContextWindow: 922_000,
		}, ""},
		"other key": {"", []string{"ANTHROPIC_API_KEY=a"}, SelectedModel{
			Profile: "anthropic/claude-sonnet-5-5", Provider: "anthropic", ModelOptions: loop.ModelOptions{Model: "claude-sonnet-5-5", APIKey: "a"}, KeyEnv: "ANTHROPIC_API_KEY", KeyNeeded: true,
			Price: new(claudePrice(2, 0.10, 10)), ContextWindow: 1_000_000,
		}, ""},
		"address alone": {"", []string{"OPENAI_BASE_URL=http://h/v1"}, SelectedModel{Profile: "openai/gpt-6.2-sol", Provider: "openai", ModelOptions: loop.ModelOptions{Model: "gpt-6.2-sol", BaseURL: "http://h/v1"}, API: "chat", KeyEnv: "OPENAI_API_KEY"}, ""},
		"nothing":       {"", nil, SelectedModel{}, "model: no model is configured, and the environment holds no OPENAI_API_KEY, ANTHROPIC_API_KEY, OPENAI_BASE_URL or ANTHROPIC_BASE_URL"},
		"api":           {"api", nil, SelectedModel{Profile: "api", Provider: "openai", ModelOptions: loop.ModelOptions{Model: "m"}, API: "chat", KeyEnv: "OPENAI_API_KEY", KeyNeeded: true}, ""},
		"api elsewhere": {"elsewhere", nil, SelectedModel{Profile: "elsewhere", Provider: "openai", ModelOptions: loop.ModelOptions{Model: "m", BaseURL: "http://h/v1"}, API: "responses", KeyEnv: "OPENAI_API_KEY"}, ""},
		"named, no key": {"openai/m", nil, SelectedModel{Profile: "openai/m", Provider: "openai", ModelOptions: loop.ModelOptions{Model: "m"}, API: "responses", KeyEnv: "OPENAI_API_KEY", KeyNeeded: true}, ""},
		"slash in name": {"openai/a/b", nil, SelectedModel{Profile: "openai/a/b", Provider: "openai", ModelOptions: loop.ModelOptions{Model: "a/b"}, API: "responses", KeyEnv: "OPENAI_API_KEY", KeyNeeded: true}, ""},
		"replay":        {"replay//x/y.yaml", nil, SelectedModel{Profile: "replay//x/y.yaml", Provider: "replay", ModelOptions: loop.ModelOptions{Model: "/x/y.yaml"}}, ""},
		"no key leaked": {"local", []string{"OPENAI_API_KEY=k"}, SelectedModel{Profile: "local", Provider: "openai", API: "chat", ModelOptions: loop.ModelOptions{Model: "qwen3", BaseURL: "http://127.0.0.1:1/v1"}, KeyEnv: "OPENAI_API_KEY"}, ""},
		"profile's key": {"keyed", []string{"OPENAI_API_KEY=k", "X_KEY=x"}, SelectedModel{Profile: "keyed", Provider: "openai", API: "chat", ModelOptions: loop.ModelOptions{Model: "m", BaseURL: "https://x/v1", APIKey: "x"}, KeyEnv: "X_KEY", KeyNeeded: true, Price: &limits.Price{Input: 1, CachedInput: 0.1, CacheWrite: 1, Output: 2}}, ""},
		"long requests": {"tiered", nil, SelectedModel{Profile: "tiered", Provider: "openai", API: "chat", ModelOptions: loop.ModelOptions{Model: "m", BaseURL: "https://x/v1"}, KeyEnv: "OPENAI_API_KEY", Price: &limits.Price{
			Input: 1, CachedInput: 1, CacheWrite: 1, Output: 2,
			Tiers: []limits.PriceTier{{Above: 1000, Input: 2, CachedInput: 0.2, CacheWrite: 2, Output: 3}, {Above: 2000, Input: 4, CachedInput: 4, CacheWrite: 4, Output: 6}},
		}}, ""},
		"ollama":           {"ollama/qwen3:8b", []string{"OPENAI_API_KEY=k"}, SelectedModel{Profile: "ollama/qwen3:8b", Provider: "ollama", ModelOptions: loop.ModelOptions{Model: "qwen3:8b", BaseURL: "http://127.0.0.1:11434"}}, ""},
		"ollama elsewhere": {"ollama/qwen3", []string{"OLLAMA_HOST=gpu.example"}, SelectedModel{Profile: "ollama/qwen3", Provider: "ollama", ModelOptions: loop.ModelOptions{Model: "qwen3", BaseURL: "http://gpu.example:11434"}}, ""},
		"no profile":       {"other", nil, SelectedModel{}, "--model: there is no model other (there are api, elsewhere, keyed, local, tiered)"},
		"other provider":   {"acme/m", nil, SelectedModel{}, "--model: there is no provider acme"},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Path: file}
			if tc.model != "" {
				o.Flags.Model = &tc.model
			}
			c, err := Load(o)
			if err != nil {
				t.Fatal(err)
			}
			all, err := c.SelectModels(tc.environ)
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Fatalf("got %v, want %s", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]SelectedModel{tc.want}, all); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSizes(t *testing.T) {
	for in, want := range map[string]Size{
		"1048576": 1 << 20, "64k": 64 << 10, "2GiB": 2 << 30, "1.5g": 3 << 29, "512 MiB": 512 << 20, "10b": 10,
		"": 0, "-1": 0, "0": 0, "g": 0, "1x": 0, "1e30g": 0, "NaN": 0, "Inf": 0, "9999999t": 0,
	} {
		got, err := parseSize(in)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %d, %v, want %d", in, got, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "image: host", "models: {a: {model: ${X:-y}}}", "- 1", "a: &x [*x]", "profiles: {a: {limits: {max_rounds: 3}}}", "? a\n: b", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var file File
		err := parse("f", []byte(text), func(string) (string, bool) { return "", false }, &file)
		if err == nil {
			return
		}
		if e, ok := errors.AsType[*Error](err); !ok || e.Where != "f" {
			t.Errorf("%T without its file: %v", err, err)
		}
	})
}
