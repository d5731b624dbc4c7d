package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
)

func project(text string) *ProjectFile {
	return &ProjectFile{Path: ProjectPath, Text: []byte(text)}
}

// TestProjectTakesNothingThatLoosens: each of these would widen a session's rights, or
// obey a stranger. The control is the user's own file, which may have all of it.
func TestProjectTakesNothingThatLoosens(t *testing.T) {
	for name, tc := range map[string]struct {
		text, want string
		// usersToo is set if no file may have it.
		usersToo bool
	}{
		"model":              {"model: openai/evil", `can't set "model"`, false},
		"base URL":           {"models: {x: {model: m, base_url: 'http://evil/v1'}}", `can't set "models"`, false},
		"backend":            {"backend: runc", `can't set "backend"`, false},
		"image":              {"image: rootfs:/ws/evil", `can't set "image"`, false},
		"workdir":            {"workdir: image", `can't set "workdir"`, false},
		"docker host":        {"docker: {host: 'tcp://evil:2375'}", `can't set "docker"`, false},
		"programs":           {"programs: {runc: /ws/runc}", `can't set "programs"`, false},
		"images":             {"images: {plain_http: [evil]}", `can't set "images"`, false},
		"env":                {"env: {A: b}", `can't set "env"`, false},
		"agents":             {"agents: {x: {dir: /root/.ssh, protocol: chat, command: [x, '{{instruction}}']}}", `can't set "agents"`, false},
		"part of an agent":   {"agents: {claude: {dir: /root/.ssh}}", `can't set "agents"`, false},
		"env_from":           {"env_from: [A]", `can't set "env_from"`, false},
		"mounts":             {"mounts: [{from: /data, to: /data}]", `can't set "mounts"`, false},
		"service":            {"service: {command: [/ws/evil]}", `can't set "service"`, false},
		"telemetry":          {"telemetry: {endpoint: 'http://evil:4318', headers: {a: $HOME}}", `can't set "telemetry"`, false},
		"caches":             {"caches: [go]", `can't set "caches"`, false},
		"toolchains":         {"host_image: {toolchains: [/root]}", `can't set "host_image"`, false},
		"root inside":        {"user: root", "user: root would loosen", false},
		"writable root":      {"writable_root: true\nimage: debian", `: its file can only tighten`, false},
		"submounts":          {"submounts: [x]", `can't set "submounts"`, false},
		"owner":              {"caller_owns_files: true", `can't set "caller_owns_files"`, false},
		"profiles":           {"profiles: {a: {}}", "unknown field", false},
		"grace":              {"grace: 1h", `can't set "grace"`, false},
		"git":                {"git: commit", "git: commit would loosen", false},
		"mode":               {"mode: bind", "mode: bind would loosen", false},
		"isolation":          {"isolation: process", "isolation: process would loosen", false},
		"on_prompt":          {"on_prompt: allow", "on_prompt: allow would loosen", false},
		"refuse_lost":        {"refuse_lost: false", "refuse_lost: false would loosen", false},
		"instruction files":  {"instruction_files: true", "instruction_files: true would loosen", false},
		"auto for a tool":    {"policy: {tools: {shell: auto}}", "policy.tools.shell: auto would loosen", false},
		"auto for a command": {"policy: {commands: {make *: auto}}", `policy.commands."make *": auto would loosen`, false},
		"auto for a class":   {"policy: {default: {execute: auto}}", "policy.default.execute: auto would loosen", false},
		"trusted folders":    {"policy: {relaxed_workspaces: [/]}", `can't set "relaxed_workspaces"`, false},
		"overrides":          {"policy: {relaxed_modes: {execute: auto}}", `can't set "relaxed_modes"`, false},
		"environment":        {"policy: {tools: {x: '${HOME:-deny}'}}", "takes no values from the environment", false},
		"alias":              {"limits: &a {max_rounds: 3}\nresources: *a", "anchors, aliases, merges and tags", true},
		"tag":                {"git: !!str ro", "anchors, aliases, merges and tags", false},
		"servers":            {"mcpServers: {}", `can't set "mcpServers"`, false},
		"hooks":              {"hooks: {start: evil}", `unknown field "hooks"`, true},
		"two documents":      {"git: ro\n---\ngit: ro", "a second document", true},
		"unknown mode":       {"policy: {tools: {shell: never}}", `policy.tools.shell: "never" is none of`, true},
		"unknown class":      {"policy: {default: {shell: deny}}", `policy.default: "shell" is none of`, true},
		"unknown preset":     {"policy: {preset: yolo}", `find policy preset "yolo"`, true},
		"no limit":           {"limits: {max_rounds: 0}", "want a whole number of at least 1", true},
		"no text":            {"a: {s: {\xaa.\r\xb1", "a byte that is not text", true}, // the library never returns for this
		"a control":          {"git: ro\x00", "a byte that is not text", true},
		"too large":          {"# " + strings.Repeat("x", MaxProjectBytes), "larger than 16384 bytes", false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(Options{Project: project(tc.text)})
			e, ok := errors.AsType[*Error](err)
			if !ok || !strings.Contains(e.Error(), tc.want) || e.Where != ProjectPath {
				t.Errorf("got %v, want %s", err, tc.want)
			}
			c, err := Load(Options{Path: write(t, "config.yaml", tc.text)})
			if err == nil {
				_, err = c.ToolPolicy("default")
			}
			if (err != nil) != tc.usersToo {
				t.Errorf("control: the user's own file with it gives %v", err)
			}
		})
	}
}

func TestProjectTightens(t *testing.T) {
	user := write(t, "config.yaml", "limits: {max_rounds: 20}\nmode: bind\ngit: commit\non_prompt: allow\npolicy: {preset: sandboxed, tools: {delete_file: deny}}")
	mine := project(`
git: ro
mode: overlay
on_prompt: fail
refuse_lost: true
instruction_files: false
limits: {max_rounds: 30, max_tool_calls: 5, timeout: 1m}
resources: {memory: 1GiB, pids: 100000}
policy: {tools: {write_file: deny, fetch: prompt}, default: {execute: prompt}, dangerous_commands: [terraform destroy]}
`)
	c, err := Load(Options{Path: user, Project: mine})
	if err != nil {
		t.Fatal(err)
	}
	got := []string{
		*c.Git, *c.Mode, *c.OnPrompt, fmt.Sprint(*c.File.RefuseLost, *c.File.InstructionFiles),
		c.Limits.Rounds.String(), c.Limits.ToolCalls.String(), c.Limits.Timeout.String(), c.File.Resources.Memory.String(), c.File.Resources.PIDs.String(),
	}
	want := []string{"ro", "overlay", "fail", "true false", "20", "5", "1m", "1GiB", "256"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p, err := c.ToolPolicy("default")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		class tools.Class
		want  policy.Verdict
	}{
		"shell":       {tools.ClassExecute, policy.Verdict{Mode: policy.ModePrompt, Rule: ProjectPath + ": class execute"}},
		"write_file":  {tools.ClassWrite, policy.Verdict{Mode: policy.ModeDeny, Rule: ProjectPath + ": tool write_file"}},
		"patch_file":  {tools.ClassWrite, policy.Verdict{Mode: policy.ModeAuto, Rule: "sandboxed write"}},
		"delete_file": {tools.ClassWrite, policy.Verdict{Mode: policy.ModeDeny, Rule: "tool delete_file"}},
	} {
		got := p.Decide(tools.Definition{Name: tools.Name(name), Class: tc.class, Runs: tools.PlaceSandbox}, "")
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	last := c.Sources[slices.IndexFunc(c.Sources, func(s record.Source) bool { return s.Name == "project" })]
	if last.SHA256 != mine.SHA256() || last.Path != ProjectPath {
		t.Errorf("source %+v", last)
	}
}

// TestFlagsAreAboveTheProject: a limit on the command line wins, but the project's
// policy applies all the same.
func TestFlagsAreAboveTheProject(t *testing.T) {
	c, err := Load(Options{
		Project: project("mode: overlay\nlimits: {max_rounds: 3}\npolicy: {tools: {shell: deny}}"),
		Flags:   File{Bounds: Bounds{Mode: new("bind"), Limits: Limits{Rounds: new(Count(9))}}, Policy: &Policy{PolicyRules: PolicyRules{Preset: new("sandboxed")}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.ToolPolicy("ci")
	if err != nil {
		t.Fatal(err)
	}
	mode := p.Decide(tools.Definition{Name: "shell", Class: tools.ClassExecute, Runs: tools.PlaceSandbox}, "").Mode
	if *c.Mode != "bind" || *c.Limits.Rounds != 9 || mode != policy.ModeDeny {
		t.Errorf("mode %s, rounds %d, shell %s", *c.Mode, *c.Limits.Rounds, mode)
	}
}

func TestHostileDepth(t *testing.T) {
	for _, unit := range []string{"[", "{a: ", "- ", "? ", "a:\n ", "&a [", "\"", "'", "|\n", "- \n", "*a ", "a: [\n", "-\t", "? - "} {
		_, err := parseProject(*project(strings.Repeat(unit, MaxProjectBytes/len(unit))))
		if e, ok := errors.AsType[*Error](err); !ok || e.Where != ProjectPath {
			t.Errorf("%q: %v", unit, err)
		}
	}
}

// TestTighteningIsNeverMilder: whatever the user's file and a project say, the project
// and the requirements make nothing milder, and each denial stays.
func TestTighteningIsNeverMilder(t *testing.T) {
	modes := []policy.Mode{policy.ModeAuto, policy.ModePromptOnce, policy.ModePrompt, policy.ModeDeny}
	names := []string{"shell", "write_file", "read_file", "srv/x"}
	classes := map[string]tools.Class{"shell": tools.ClassExecute, "write_file": tools.ClassWrite, "read_file": tools.ClassRead, "srv/x": tools.ClassNetwork}
	rapid.Check(t, func(rt *rapid.T) {
		pick := func(from []policy.Mode, label string) map[string]string {
			out := map[string]string{}
			for _, n := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"shell", "write_file", "srv/x", "srv__x", "srv/*", "srv__*"}), func(s string) string { return s }).Draw(rt, label) {
				out[n] = string(rapid.SampledFrom(from).Draw(rt, label+" "+n))
			}
			return out
		}
		defaults := func(from []policy.Mode, label string) map[string]string {
			out := map[string]string{}
			for _, n := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"none", "read", "write", "execute", "network"}), func(s string) string { return s }).Draw(rt, label) {
				out[n] = string(rapid.SampledFrom(from).Draw(rt, label+" "+n))
			}
			return out
		}
		preset := rapid.OneOf(rapid.Just((*string)(nil)), rapid.Map(rapid.SampledFrom(policy.PresetNames()), func(s string) *string { return &s }))
		user := &Policy{
			PolicyRules:  PolicyRules{Preset: preset.Draw(rt, "user preset"), Default: defaults(modes, "user classes"), Tools: pick(modes, "user tools")},
			RelaxedModes: defaults(modes, "trusted"), RelaxedWorkspaces: rapid.SampledFrom([][]string{nil, {"/ws"}}).Draw(rt, "trusted in"),
		}
		c := Config{File: File{Policy: user}, asksOnPrompt: rapid.Bool().Draw(rt, "on_prompt")}
		before, err := c.ToolPolicy("default")
		if err != nil {
			rt.Fatal(err)
		}
		mine := &PolicyRules{Preset: preset.Draw(rt, "project preset"), Default: defaults(modes[1:], "project classes"), Tools: pick(modes[1:], "project tools")}
		c.Project.Policy = mine
		between, err := c.ToolPolicy("default")
		if err != nil {
			rt.Fatal(err)
		}
		c.Requirements.Policy = &Policy{PolicyRules: PolicyRules{Preset: preset.Draw(rt, "their preset"), Default: defaults(modes, "their classes"), Tools: pick(modes, "their tools")}}
		after, err := c.ToolPolicy("default")
		if err != nil {
			rt.Fatal(err)
		}
		for _, n := range names {
			for _, place := range []tools.Place{tools.PlaceSandbox, tools.PlaceHost} {
				def := tools.Definition{Name: tools.Name(n), Class: classes[n], Runs: place}
				a, b, d := before.Decide(def, "/ws").Mode, between.Decide(def, "/ws").Mode, after.Decide(def, "/ws").Mode
				if slices.Index(modes, b) < slices.Index(modes, a) || slices.Index(modes, d) < slices.Index(modes, b) {
					rt.Fatalf("%s: %s, %s with the project, %s with the requirements", n, a, b, d)
				}
				for _, denied := range []string{user.Tools[n], mine.Tools[n], c.Requirements.Policy.Tools[n], mine.Default[string(classes[n])]} {
					if denied == "deny" && d != policy.ModeDeny {
						rt.Fatalf("%s is denied, and %s", n, d)
					}
				}
			}
		}
	})
}

// TestProjectLowersAlone is the same for numbers and words.
func TestProjectLowersAlone(t *testing.T) {
	order := []string{"deny", "fail", "allow"}
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.Int64Range(1, 100)
		lower := File{Bounds: Bounds{
			OnPrompt: new(rapid.SampledFrom(order).Draw(rt, "user's")), Git: new(rapid.SampledFrom([]string{"ro", "commit"}).Draw(rt, "git")),
			Limits: Limits{Rounds: new(Count(n.Draw(rt, "rounds")))}, Resources: Resources{PIDs: new(Count(n.Draw(rt, "pids")))},
		}}
		c := Config{File: builtinFile(limits.DefaultResources()).Over(lower)}
		p := Project{Bounds: Bounds{
			OnPrompt: new(rapid.SampledFrom(order[:2]).Draw(rt, "project's")), Git: new("ro"), Mode: new("overlay"),
			Limits:    Limits{Rounds: new(Count(n.Draw(rt, "project's rounds"))), Tokens: new(Count(n.Draw(rt, "tokens")))},
			Resources: Resources{PIDs: new(Count(n.Draw(rt, "project's pids")))},
		}}
		if err := c.tightenBy(p); err != nil {
			rt.Fatal(err)
		}
		milder := func(a, than string) bool { return slices.Index(order, a) > slices.Index(order, than) }
		switch {
		case milder(*c.OnPrompt, *lower.OnPrompt), milder(*c.OnPrompt, *p.OnPrompt):
			rt.Fatalf("on_prompt %s", *c.OnPrompt)
		case *c.Limits.Rounds > *lower.Limits.Rounds, *c.Limits.Rounds > *p.Limits.Rounds, *c.Limits.Tokens != *p.Limits.Tokens:
			rt.Fatalf("rounds %d, tokens %d", *c.Limits.Rounds, *c.Limits.Tokens)
		case *c.File.Resources.PIDs > *lower.Resources.PIDs, *c.Git != "ro", *c.Mode != "overlay":
			rt.Fatalf("pids %d, git %s, mode %s", *c.File.Resources.PIDs, *c.Git, *c.Mode)
		}
	})
}

// FuzzProject: a stranger's file gives settings that only tighten, or an error with its
// place.
func FuzzProject(f *testing.F) {
	for _, s := range []string{"", "git: ro", "policy: {tools: {shell: deny}}", "limits: {max_rounds: 3}\n---\n", "? a\n: b", "a: |\n  x\n", "{", "&a [*a]", "mode: overlay # x\n", "policy:\n  dangerous_commands: [a, 'b|c']\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := Config{File: builtinFile(limits.DefaultResources()), origins: map[string]string{}}
		before, err := c.ToolPolicy("default")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.loadProject(Options{Project: project(text)}, nil); err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || e.Where != ProjectPath {
				t.Errorf("%T without its file: %v", err, err)
			}
			return
		}
		after, err := c.ToolPolicy("default")
		if err != nil {
			t.Fatalf("a file that was accepted gives no policy: %v", err)
		}
		order := []policy.Mode{policy.ModeAuto, policy.ModePromptOnce, policy.ModePrompt, policy.ModeDeny}
		for _, class := range []tools.Class{tools.ClassNone, tools.ClassRead, tools.ClassWrite, tools.ClassExecute, tools.ClassNetwork} {
			def := tools.Definition{Name: "shell", Class: class, Runs: tools.PlaceSandbox}
			if slices.Index(order, after.Decide(def, "").Mode) < slices.Index(order, before.Decide(def, "").Mode) {
				t.Errorf("%q makes %s milder", text, class)
			}
		}
	})
}
