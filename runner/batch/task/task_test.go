package task

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, dir string, files map[string]string) string {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

func single(toml string) map[string]string {
	return map[string]string{
		"task.toml": toml, "instruction.md": "Write hello.\n", "environment/Dockerfile": "FROM debian\n", "tests/test.sh": "exit 0\n", "solution/solve.sh": "true\n",
	}
}

func load(t testing.TB, files map[string]string, variables ...string) Task {
	t.Helper()
	dir := write(t, filepath.Join(t.TempDir(), "hello"), files)
	list, err := Load([]string{dir}, Options{Lookup: func(name string) (string, bool) {
		for _, v := range variables {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}})
	must(t, err)
	if len(list) != 1 || list[0].ID != "hello" || list[0].Source != dir {
		t.Fatalf("%+v", list)
	}
	return list[0]
}

// TestVersion10: a schema 1.0 task without an environment has that schema's defaults,
// and deprecated keys work.
func TestVersion10(t *testing.T) {
	got := load(t, single(`version = "1.0"
[metadata]
difficulty = "easy"
`))
	if len(got.Unsupported) > 0 {
		t.Fatal(got.Unsupported)
	}
	e := got.Environment
	if e.MilliCPUs != 1000 || e.MemoryBytes != 2<<30 || e.StorageBytes != 10<<30 || e.Network.Mode != Public || !e.Root || !strings.HasPrefix(e.Image, "build:/") {
		t.Errorf("%+v", e)
	}
	s := got.Steps[0]
	if s.Instruction != "Write hello.\n" || s.Agent.Time != 10*time.Minute || s.Verifier.Time != 10*time.Minute || s.Verifier.Separate || got.Metadata["difficulty"] != "easy" {
		t.Errorf("%+v", s)
	}
	old := load(t, single("version = \"1.0\"\n[environment]\nmemory = \"2.5G\"\nstorage = \"512M\"\nallow_internet = false\n"))
	if e := old.Environment; e.MemoryBytes != 5<<29 || e.StorageBytes != 512<<20 || e.Network.Mode != NoNetwork || old.Steps[0].Verifier.Network.Mode != NoNetwork {
		t.Errorf("%+v", e)
	}
}

func TestVersion14(t *testing.T) {
	files := single(`schema_version = "1.4"
artifacts = ["/app/out.txt", { source = "/x", destination = "rel/path", exclude = ["*.tmp"] }]
unknown = 1
[agent]
network_mode = "no-network"
user = "root"
[verifier]
timeout_sec = 1.5
env = { KEY = "${HOST_VAR}", OTHER = "a${NONE:-b}$c" }
network_mode = "allowlist"
allowed_hosts = ["example.com", "*.example.org", "10.0.0.0/8", "2001:db8::1"]
environment_mode = "separate"
[[verifier.collect]]
command = "make report"
[environment]
cpus = 0.5
memory_mb = 100
[environment.healthcheck]
command = "true"
retries = 1
`)
	got := load(t, files, "HOST_VAR=v")
	if len(got.Unsupported) > 0 {
		t.Fatal(got.Unsupported)
	}
	s := got.Steps[0]
	if s.Agent.Time != 0 || s.Agent.Network.Mode != NoNetwork || !s.Verifier.Separate || s.Verifier.Time != 1500*time.Millisecond {
		t.Errorf("%+v", s)
	}
	if d := cmp.Diff([]string{"KEY=v", "OTHER=ab$c"}, s.Verifier.Env); d != "" {
		t.Error(d)
	}
	var rules []string
	for _, r := range s.Verifier.Network.Rules {
		rules = append(rules, r.String())
	}
	if d := cmp.Diff([]string{"host://example.com", "host://*.example.org", "tcp://10.0.0.0/8:*", "tcp://[2001:db8::1]:*"}, rules); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]Artifact{{Source: "/app/out.txt"}, {Source: "/x", Destination: "rel/path", Exclude: []string{"*.tmp"}}}, s.Artifacts); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]Collect{{Command: "make report", Time: time.Minute}}, s.Verifier.Collect); d != "" {
		t.Error(d)
	}
	if h := got.Environment.HealthCheck; h == nil || h.Retries != 1 || h.Interval != 5*time.Second {
		t.Errorf("%+v", h)
	}
	if e := got.Environment; e.MilliCPUs != 500 || e.MemoryBytes != 100<<20 || e.StorageBytes != 0 {
		t.Errorf("%+v", e)
	}
}

// TestAllowedHosts: names are checked in TLS and HTTP. Addresses and networks can't be.
func TestAllowedHosts(t *testing.T) {
	for host, want := range map[string]string{
		"example.com":         "host://example.com",
		"EXAMPLE.com.":        "host://example.com",
		"bücher.example":      "host://xn--bcher-kva.example",
		"db":                  "host://db",
		"*.example.com":       "host://*.example.com",
		"93.184.216.34":       "tcp://93.184.216.34:*",
		"93.184.0.0/16":       "tcp://93.184.0.0/16:*",
		"2606:4700::1111":     "tcp://[2606:4700::1111]:*",
		"2606:4700::/32":      "tcp://[2606:4700::/32]:*",
		"":                    `allowed_hosts: "": want a host`,
		"example.com:443":     "without a scheme, a port or a path",
		"https://x.example":   "without a scheme, a port or a path",
		"example.com/path":    "without a scheme, a port or a path",
		"user@example.com":    "without a scheme, a port or a path",
		"[2606:4700::1111]":   "without a scheme, a port or a path",
		"93.184.216.34/16":    "invalid network",
		"::ffff:10.1.2.3":     "in disguise",
		"fe80::1%eth0":        "zone",
		"2130706433":          "neither a name nor an address",
		"0x7f.1":              "neither a name nor an address",
		"*":                   "not a name",
		"*.com":               "names of everybody",
		"a.*.example.com":     "not a name",
		"*.93.184.216.34":     "write tcp:// for an address",
		"exa mple.com":        "write it escaped",
		`a\r\nHost: b.test`:   "without a scheme, a port or a path",
		`example.com\u0000.x`: "write it escaped",
	} {
		got := load(t, single(fmt.Sprintf("[agent]\nnetwork_mode = \"allowlist\"\nallowed_hosts = [\"%s\"]\n", host)))
		text := strings.Join(got.Unsupported, "; ")
		if len(got.Unsupported) == 0 {
			text = got.Steps[0].Agent.Network.Rules[0].String()
		}
		if text != want && (len(got.Unsupported) != 1 || !strings.Contains(text, want)) {
			t.Errorf("%q: %s, want %s", host, text, want)
		}
	}
	none := load(t, single("[agent]\nnetwork_mode = \"allowlist\"\n")).Steps[0].Agent.Network
	if none.Mode != AllowList || len(none.Rules) != 0 {
		t.Errorf("an empty list: %+v", none)
	}
}

// TestVerifierEnvironment: a separate verifier's image is its own, tests/Dockerfile's,
// or the agent's, in this order.
func TestVerifierEnvironment(t *testing.T) {
	for _, c := range []struct {
		toml, image string
		dockerfile  bool
	}{
		{toml: "[verifier.environment]\ndocker_image = \"other\"\n", image: "other", dockerfile: true},
		{toml: "[verifier.environment]\nmemory_mb = 64\n", image: "tests", dockerfile: true},
		{toml: "[verifier.environment]\nmemory_mb = 64\nnetwork_mode = \"no-network\"\n", image: "environment"},
		{toml: "[verifier]\nenvironment_mode = \"separate\"\n", image: "environment"},
		{toml: "[verifier]\nenvironment_mode = \"separate\"\n", image: "tests", dockerfile: true},
	} {
		files := single("[environment]\nworkdir = \"/w\"\n" + c.toml)
		if c.dockerfile {
			files["tests/Dockerfile"] = "FROM x\n"
		}
		got := load(t, files)
		v := got.Steps[0].Verifier
		if len(got.Unsupported) > 0 || !v.Separate || !strings.HasSuffix(v.Environment.Image, c.image) || c.image == "environment" && v.Environment.Workdir != "/w" {
			t.Errorf("%q: %+v, %v", c.toml, v.Environment, got.Unsupported)
		}
	}
}

func TestSteps(t *testing.T) {
	files := map[string]string{
		"task.toml": `schema_version = "1.3"
multi_step_reward_strategy = "final"
[agent]
timeout_sec = 5
[[steps]]
name = "one"
min_reward = 0.5
[steps.agent]
timeout_sec = 7
[[steps]]
name = "two"
min_reward = { reward = 1, style = 0.2 }
`,
		"environment/Dockerfile": "FROM debian\n", "tests/test.sh": "shared",
		"steps/one/instruction.md": "First.", "steps/one/workdir/setup.sh": "true", "steps/one/tests/test.sh": "one",
		"steps/two/instruction.md": "Second.", "steps/two/solution/solve.sh": "true",
	}
	got := load(t, files)
	if len(got.Unsupported) > 0 || !got.MultiStep || got.Strategy != Final || len(got.Steps) != 2 {
		t.Fatalf("%+v", got)
	}
	one, two := got.Steps[0], got.Steps[1]
	if one.Name != "one" || one.Instruction != "First." || one.Agent.Time != 7*time.Second || one.MinReward["reward"] != 0.5 || !strings.HasSuffix(one.Files, "steps/one/workdir") || !strings.HasSuffix(one.Verifier.Tests, "steps/one/tests") {
		t.Errorf("%+v", one)
	}
	if two.Agent.Time != 5*time.Second || two.MinReward["style"] != 0.2 || two.Verifier.Tests != filepath.Join(got.Source, "tests") || !strings.HasSuffix(two.Solution, "steps/two/solution") || two.Files != "" {
		t.Errorf("%+v", two)
	}
}

// TestUnsupported: features that can't be provided, and faults, are listed with their
// reasons.
func TestUnsupported(t *testing.T) {
	for _, c := range []struct {
		toml, want string
		change     func(files map[string]string)
	}{
		{toml: "[environment]\ngpus = 2\n", want: "GPUs (2)"},
		{toml: "[environment]\nos = \"windows\"\n", want: "the operating system windows"},
		{toml: "[environment]\ntpu = { type = \"v5\" }\n", want: "a TPU"},
		{toml: "[[environment.mcp_servers]]\nname = \"x\"\n", want: "MCP servers of the task"},
		{toml: "[environment]\nskills_dir = \"../skills\"\n", want: `invalid: environment.skills_dir "../skills": want an absolute path in its shortest form`},
		{toml: "[agent]\nuser = \"bob\"\n", want: `agent.user "bob"`},
		{toml: "[verifier]\nuser = 1000\n", want: "verifier.user 1000"},
		{toml: "[verifier]\nenv = { K = \"${ABSENT}\" }\n", want: "env K: the variable ABSENT is not set, or not given to tasks"},
		{toml: "schema_version = \"1.9\"\n", want: "schema version 1.9 is newer than 1.4"},
		{toml: "schema_version = \"2.0\"\n", want: `invalid: schema version "2.0": want 1.0 to 1.4`},
		{toml: "[verifier.continuous]\ncommand = \"x\"\n", want: "a continuous verifier"},
		{toml: "[[verifier.collect]]\ncommand = \"x\"\nservice = \"db\"\n", want: "service db"},
		{toml: "[environment]\ndocker_image = \"rootfs:/\"\n", want: `invalid: docker_image "rootfs:/": want the name of an image`},
		{toml: "[environment]\ndocker_image = \"host\"\n", want: `invalid: docker_image "host": want the name of an image`},
		{toml: "x = [\n", want: "invalid: task.toml:1: unexpected EOF; expected value"},
		{toml: "[agent]\ntimeout_sec = -1\n", want: "invalid: agent.timeout_sec is -1: want a number of seconds"},
		{toml: "[agent]\nnetwork_mode = \"some\"\n", want: `invalid: agent.network_mode "some": want public, no-network or allowlist`},
		{toml: "[agent]\nnetwork_mode = \"allowlist\"\nallowed_hosts = [\"https://x.example\"]\n", want: `invalid: agent.allowed_hosts: "https://x.example": want a host or an address, without a scheme, a port or a path`},
		{toml: "[verifier]\nenvironment_mode = \"shared\"\n[verifier.environment]\ndocker_image = \"x\"\n", want: "invalid: verifier.environment_mode is shared, and there is a verifier.environment"},
		{toml: "artifacts = [\"/a/../b\"]\n", want: `invalid: artifacts: source "/a/../b": want a path that does not lead up`},
		{toml: "artifacts = [{ source = \"/a\", destination = \"manifest.json\" }]\n", want: `invalid: artifacts: destination "manifest.json": want a relative path that does not lead up, and not manifest.json`},
		{toml: "artifacts = [\"/a\", \"/a/b\"]\n", want: "invalid: artifacts: /a and /a/b overlap"},
		{toml: "[[steps]]\nname = \"../x\"\n", want: `invalid: step "../x": want the name of a directory in steps, once`},
		{want: "several services (docker-compose.yaml)", change: func(f map[string]string) {
			f["environment/docker-compose.yaml"] = "services:\n  main:\n    build: .\n  db:\n    image: postgres\n"
		}},
		{want: "docker-compose.yaml: privileged of service main", change: func(f map[string]string) {
			f["environment/docker-compose.yaml"] = "services:\n  main:\n    build: .\n    privileged: true\n"
		}},
		{want: "neither a Dockerfile nor docker_image", change: func(f map[string]string) { delete(f, "environment/Dockerfile") }},
		{want: "tests for Windows", change: func(f map[string]string) { delete(f, "tests/test.sh"); f["tests/test.bat"] = "" }},
		{want: "invalid: tests/test.sh is missing", change: func(f map[string]string) { delete(f, "tests/test.sh") }},
		{want: "the directory has the older form of terminal-bench (task.yaml): convert it with harbor tasks migrate", change: func(f map[string]string) {
			delete(f, "task.toml")
			f["task.yaml"] = "instruction: x\n"
		}},
	} {
		files := single(c.toml)
		if c.change != nil {
			c.change(files)
		}
		if got := load(t, files).Unsupported; !slices.Contains(got, c.want) || len(got) != 1 {
			t.Errorf("%q: %q, want %q", c.toml, got, c.want)
		}
	}
}

// TestComposeOfOne: a file with only the agent's service asks for nothing else.
func TestComposeOfOne(t *testing.T) {
	files := single("")
	files["environment/docker-compose.yml"] = "services:\n  web:\n    build: .\n" // data, which Harbor does not read
	files["environment/docker-compose.yaml"] = "services:\n  main:\n    build: {context: \"${CONTEXT_DIR}\"}\n    image: ${MAIN_IMAGE_NAME}\n    command: [sh, -c, sleep infinity]\n    volumes: [\"a:b\"]\n"
	if got := load(t, files).Unsupported; len(got) > 0 {
		t.Error(got)
	}
}

func TestChecksum(t *testing.T) {
	base := load(t, single("")).Checksum
	if again := load(t, single("")).Checksum; again != base {
		t.Error("the checksum depends on where the task is")
	}
	for name, change := range map[string]func(f map[string]string){
		"content": func(f map[string]string) { f["tests/test.sh"] = "exit 1\n" },
		"name":    func(f map[string]string) { f["tests/more"] = "" },
	} {
		files := single("")
		change(files)
		if load(t, files).Checksum == base {
			t.Errorf("the %s does not change the checksum", name)
		}
	}
}

func TestLines(t *testing.T) {
	dir := write(t, t.TempDir(), map[string]string{
		"work/file": "x", "tests/test.sh": "exit 0",
		"tasks.jsonl": "\ufeff" + `{"id":"one","prompt":"Do it.","workspace":"work","image":"debian","verify":"make test","limits":{"timeout_sec":2,"max_cost_usd":0.5,"memory_mb":64},"metadata":{"kind":"x"}}

{"id":"two","prompt":"Do it.","workspace":"git+https://example.com/x@0123456789012345678901234567890123456789","verify":{"tests":"tests"},"network":["example.com"]}
`,
	})
	list, err := Load([]string{filepath.Join(dir, "tasks.jsonl")}, Options{})
	must(t, err)
	one, two := list[0], list[1]
	if one.ID != "one" || !strings.HasSuffix(one.Source, "tasks.jsonl:1") || one.Environment.Workspace != filepath.Join(dir, "work") || one.Environment.Root || one.Environment.MemoryBytes != 64<<20 || one.Environment.Network.Mode != NoNetwork {
		t.Errorf("%+v", one)
	}
	if s := one.Steps[0]; s.Instruction != "Do it." || s.Verifier.Command != "make test" || s.Agent.Time != 2*time.Second || *s.Agent.Budget.CostMicroUSD != 500_000 || s.Verifier.Time != 10*time.Minute {
		t.Errorf("%+v", s)
	}
	if !strings.HasSuffix(two.Source, ":3") || two.Environment.Git.URL != "https://example.com/x" || two.Steps[0].Verifier.Tests != filepath.Join(dir, "tests") || two.Environment.Network.Mode != AllowList {
		t.Errorf("%+v", two)
	}
	must(t, os.WriteFile(filepath.Join(dir, "work", "file"), []byte("y"), 0o644))
	again, err := Load([]string{filepath.Join(dir, "tasks.jsonl")}, Options{})
	must(t, err)
	if again[0].Checksum == one.Checksum || again[1].Checksum != two.Checksum {
		t.Error("the checksum does not follow the workspace")
	}
}

func TestInvalidLines(t *testing.T) {
	for text, want := range map[string]string{
		`{"prompt":"x"}`:                                     "id is missing",
		`{"id":"x"}`:                                         "prompt is missing",
		`{"id":"x","prompt":"x","more":1}`:                   `json: unknown field "more"`,
		`{"id":"x","prompt":"x"} {}`:                         "more than one value",
		`{"id":"x","prompt":"x","workspace":"absent"}`:       "no such directory or archive",
		`{"id":"x","prompt":"x","workspace":"git+x@1"}`:      "want git+URL@COMMIT",
		`{"id":"x","prompt":"x","verify":{}}`:                `want a command, or {"tests": DIR}`,
		`{"id":"x","prompt":"x","verify":{"tests":"."}}`:     "has no test.sh",
		`{"id":"x","prompt":"x","network":3}`:                "network: want",
		`{"id":"x","prompt":"x","limits":{"cpus":-1}}`:       "limits: cpus is -1",
		`{"id":"x","prompt":"x","limits":{"memory_mb":-1}}`:  "can't be negative",
		`{"id":"x","prompt":"x","limits":{"max_rounds":-1}}`: "must be positive",
		``: "the file has no tasks",
	} {
		dir := write(t, t.TempDir(), map[string]string{"t.jsonl": text + "\n"})
		_, err := Load([]string{filepath.Join(dir, "t.jsonl")}, Options{})
		if _, ok := errors.AsType[*Error](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b", "a", "c"} {
		write(t, filepath.Join(dir, name), single(""))
	}
	must(t, os.Mkdir(filepath.Join(dir, "none"), 0o755))
	list, err := Load([]string{dir}, Options{})
	must(t, err)
	var ids []string
	for _, t := range list {
		ids = append(ids, t.ID)
	}
	if d := cmp.Diff([]string{"a", "b", "c"}, ids); d != "" {
		t.Error(d)
	}
	if _, err := Load([]string{dir, filepath.Join(dir, "a")}, Options{}); err == nil || !strings.Contains(err.Error(), `another task is also called "a"`) {
		t.Errorf("twice: %v", err)
	}
	if _, err := Load([]string{filepath.Join(dir, "none")}, Options{}); !errors.Is(err, ErrNoTask) {
		t.Errorf("an empty directory: %v", err)
	}
	if _, err := Load([]string{filepath.Join(dir, "absent")}, Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
	lines := t.TempDir()
	must(t, os.WriteFile(filepath.Join(lines, "b.jsonl"), []byte("\ufeff{\"id\":\"two\",\"prompt\":\"x\"}\n"), 0o644))
	must(t, os.WriteFile(filepath.Join(lines, "a.jsonl"), []byte("{\"id\":\"one\",\"prompt\":\"x\"}\n"), 0o644))
	if list, err = Load([]string{lines}, Options{}); err != nil || len(list) != 2 || list[0].ID != "one" || list[1].ID != "two" {
		t.Errorf("a directory of .jsonl files: %+v, %v", list, err)
	}
	write(t, filepath.Join(lines, "z"), single(""))
	if _, err = Load([]string{lines}, Options{}); err == nil || !strings.Contains(err.Error(), "a.jsonl is beside directories of tasks") {
		t.Errorf("a directory of both: %v", err)
	}
	both := []string{filepath.Join(lines, "z"), filepath.Join(lines, "a.jsonl")}
	if list, err = Load(both, Options{}); err != nil || len(list) != 2 {
		t.Errorf("both, named: %+v, %v", list, err)
	}
	hidden := write(t, t.TempDir(), map[string]string{".x.jsonl": "{\"id\":\"hidden\",\"prompt\":\"x\"}\n"})
	write(t, filepath.Join(hidden, "z"), single(""))
	if list, err = Load([]string{hidden}, Options{}); err != nil || len(list) != 1 || list[0].ID != "z" {
		t.Errorf("with a hidden file: %+v, %v", list, err)
	}
	must(t, os.WriteFile(both[1], []byte("{\"id\":\"z\",\"prompt\":\"x\"}\n"), 0o644))
	if _, err = Load(both, Options{}); err == nil || !strings.Contains(err.Error(), `another task is also called "z"`) {
		t.Errorf("one id in both: %v", err)
	}
	write(t, filepath.Join(dir, "none", "bad\xff"), single(""))
	list, err = Load([]string{filepath.Join(dir, "none")}, Options{})
	if err != nil || list[0].ID != "bad\ufffd" || !slices.Equal(list[0].Unsupported, []string{"the name of the directory is not UTF-8"}) || len(list[0].Steps) != 1 {
		t.Errorf("a name that JSON can't have: %+v, %v", list, err)
	}
}

// FuzzHarbor: any task.toml is read or has a reason why not.
func FuzzHarbor(f *testing.F) {
	for _, text := range []string{"", "version = \"1.0\"", "[environment]\nmemory = \"2G\"", "artifacts = [1, {}]", "[[steps]]\nname = \"a\"\nmin_reward = []", "[verifier]\nenv = { A = \"${B:-}${\" }"} {
		f.Add(text)
	}
	dir := write(f, filepath.Join(f.TempDir(), "t"), single(""))
	f.Fuzz(func(t *testing.T, text string) {
		must(t, os.WriteFile(filepath.Join(dir, "task.toml"), []byte(text), 0o644))
		list, err := Load([]string{dir}, Options{})
		must(t, err)
		got := list[0]
		if len(got.Unsupported) == 0 && (len(got.Steps) == 0 || got.Environment.Image == "" || got.Steps[0].Verifier.Tests == "") {
			t.Errorf("%q: %+v", text, got)
		}
	})
}

// FuzzLine: any line is read or refused.
func FuzzLine(f *testing.F) {
	f.Add(`{"id":"x","prompt":"y","limits":{"max_cost_usd":1e300}}`)
	f.Add(`{"id":"x","prompt":"y","verify":"","network":"public"}`)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseLine([]byte(text), dir)
		if err == nil && (got.ID == "" || len(got.Steps) != 1 || got.Checksum == "") {
			t.Errorf("%q: %+v", text, got)
		}
	})
}

// TestTasksStayInTheirDirectory: a task's symlinks can't turn other files of this
// machine into its instruction or directories. The control stays in the task.
func TestTasksStayInTheirDirectory(t *testing.T) {
	outside := write(t, t.TempDir(), map[string]string{"key": "a private key\n", "dir/test.sh": "true\n", "dir/Dockerfile": "FROM debian\n"})
	for name, target := range map[string]string{
		"instruction.md": filepath.Join(outside, "key"), "environment": filepath.Join(outside, "dir"), "tests": filepath.Join(outside, "dir"), "solution": outside,
	} {
		dir := write(t, filepath.Join(t.TempDir(), "hello"), single(`version = "1.0"`))
		must(t, os.RemoveAll(filepath.Join(dir, name)))
		must(t, os.Symlink(target, filepath.Join(dir, name)))
		list, err := Load([]string{dir}, Options{})
		must(t, err)
		if len(list) != 1 || len(list[0].Unsupported) != 1 || strings.Contains(fmt.Sprintf("%+v", list[0]), "private") {
			t.Errorf("%s: %+v", name, list)
		}
	}
	dir := write(t, filepath.Join(t.TempDir(), "hello"), single(`version = "1.0"`))
	must(t, os.Rename(filepath.Join(dir, "instruction.md"), filepath.Join(dir, "text")))
	must(t, os.Symlink("text", filepath.Join(dir, "instruction.md")))
	list, err := Load([]string{dir}, Options{})
	must(t, err)
	if len(list) != 1 || len(list[0].Unsupported) > 0 || list[0].Steps[0].Instruction != "Write hello.\n" {
		t.Errorf("control: %+v", list)
	}
}
