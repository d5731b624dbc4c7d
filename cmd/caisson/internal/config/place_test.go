package config

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestFaultsHavePlaces is acceptance case 138: a setting that is found wrong after its
// file was read is reported with file, line and column, or with its flag or variable.
// The control is a fault that the decoder finds.
func TestFaultsHavePlaces(t *testing.T) {
	for name, tc := range map[string]struct {
		user, required, profile, workspace string
		environ                            []string
		flags, asked                       File
		want                               string
	}{
		"decoder":           {user: "grace: 5s\ngrce: 5s\n", want: "USER:2:1: "},
		"backend":           {user: "# mine\nbackend: podman\n", want: `USER:2:10: backend: "podman" is none of`},
		"preset":            {user: "policy:\n  default: {read: auto}\n  preset: lax\n", want: "USER:3:11: policy.preset: "},
		"preset, one line":  {user: "policy: {preset: lax}\n", want: "USER:1:18: policy.preset: "},
		"a mode":            {user: "grace: 5s\npolicy:\n  default: {read: maybe}\n", want: "USER:3:19: policy.default.read: \"maybe\" is none of auto"},
		"a mode of a tool":  {user: "policy:\n  tools: {shell: alow}\n", want: "USER:2:18: policy.tools.shell: \"alow\" is none of auto"},
		"a class":           {user: "policy:\n  default: {exec: deny}\n", want: "USER:2:3: policy.default: \"exec\" is none of none, read, write, execute, network"},
		"concurrency":       {user: "concurrency: 65\n", want: "USER:1:14: concurrency: "},
		"program":           {user: "programs:\n  runsc: bin/runsc\n", want: "USER:2:10: programs.runsc: "},
		"resources":         {user: "resources:\n  memory: 1k\n", want: "USER:2:11: resources.memory: 1KiB is less than a sandbox needs, which is 64MiB"},
		"model":             {user: "model: quick\nmodels:\n  fast: {model: x}\n", want: "USER:1:8: model: "},
		"profile of models": {user: "model: a.b/c\nmodels:\n  a.b/c:\n    temperature: 1\n", want: "models.a.b/c: the model's name at its provider is missing"},
		"workspace":         {user: "workspaces:\n  /w:\n    env:\n      LD_X: y\n", workspace: "/w", want: "USER:4:13: env.LD_X: "},
		"mounts":            {user: "git: ro\nmounts: [{from: /a}]\n", want: "USER:2:17: mounts: a mount needs from and to"},
		"mount point":       {user: "mounts: [{from: /a, to: /b/../proc}]\n", want: "USER:1:25: mounts: \"/b/../proc\" is no absolute path of the sandbox"},
		"caches":            {user: "caches: [go, yum]\n", want: "USER:1:14: caches: unknown cache \"yum\""},
		"env_from":          {user: "env_from:\n  - A\n  - B C\n", want: "USER:3:5: env_from: \"B C\" is not"},
		"fetch":             {user: "fetch:\n  allow:\n    - https://a.example/\n    - b.example\n", want: "USER:4:7: fetch.allow: \"b.example\""},
		"presets":           {user: "egress:\n  presets: [go, npmm]\n", want: "USER:2:17: egress.presets: unknown preset \"npmm\""},
		"serve mounts":      {user: "mounts: []\nserve: {sandboxes: {mounts: {data: {from: data, to: /data}}}}\n", want: "USER:2:30: serve.sandboxes.mounts.data: \"data\" does not begin"},
		"fallback":          {user: "model: a\nmodels:\n  a: {model: x, fallback: [b, a]}\n  b: {model: y}\n", want: "USER:3:31: models.a.fallback: the model a is asked already"},
		"required mounts":   {user: "mounts: [{from: /srv/data/x, to: /x}, {from: /srv/database, to: /y}]\n", required: "mounts: [/srv/data]\n", want: "requirements: mounts /srv/database is not allowed"},
		"agent's directory": {user: "agents: {claude: {dir: /srv/data/x}, codex: {dir: /srv/b}}\n", required: "mounts: [/srv/data]\n", want: "requirements: agents.codex.dir /srv/b is not allowed"},
		"read-only mounts":  {user: "mounts: [{from: /srv/a, to: /x, read_only: true}, {from: /srv/b, to: /y}]\n", required: "writable_mounts: []\n", want: "requirements: mounts /srv/b is not allowed"},
		"required env_from": {user: "env_from: [CI_A, B]\n", required: "env_from: [CI_*]\n", want: "requirements: env_from B is not allowed"},
		"required cache":    {user: "cache_use: writable\n", required: "cache_use: frozen\n", want: "requirements: cache_use writable is not allowed"},
		"isolation":         {user: "backend: runc\nisolation: process\n", want: "USER:2:12: isolation: backend runc has no isolation process"},
		"isolation flag":    {user: "backend: docker\n", flags: File{Bounds: Bounds{Isolation: new("process")}}, want: "--isolation: backend docker has no isolation process"},
		"profile":           {user: "backend: auto\nprofiles:\n  fast:\n    backend: podman\n", profile: "fast", want: "USER:4:14: backend: "},
		"requirements":      {required: "mode: both\n", want: "REQUIRED:1:7: requirements.mode: "},
		"their preset":      {required: "policy:\n  preset: lax\n", want: "REQUIRED:2:11: requirements.policy.preset: "},
		"variable":          {user: "model: x/y\n", environ: []string{"CAISSON_MODEL=quick"}, want: "CAISSON_MODEL: there is no model quick"},
		"flag":              {user: "model: x/y\n", flags: File{Model: new("quick")}, want: "--model: there is no model quick"},
		"client":            {flags: File{Model: new("x/y")}, asked: File{Model: new("quick")}, want: "model: there is no model quick"},
		"preset variable":   {user: "policy: {preset: ci}\n", environ: []string{"CAISSON_POLICY=lax"}, want: "CAISSON_POLICY: "},
		"concurrency flag":  {user: "concurrency: 3\n", flags: File{Concurrency: new(Count(65))}, want: "--concurrency: 65 tool calls"},
		"resource variable": {environ: []string{"CAISSON_OPEN_FILES=3"}, want: "CAISSON_OPEN_FILES: 3 is less than"},
		"resource flag":     {user: "resources: {pids: 3, command_time: 2s}\n", flags: File{Bounds: Bounds{Resources: Resources{PIDs: new(Count(100)), CommandTime: new(Duration(time.Millisecond))}}}, want: "--command-time: 1ms is less than a sandbox needs, which is 1s"},
		"flag not allowed":  {required: "backends: [runc]\n", flags: File{Backend: new("docker")}, want: "requirements: --backend docker is not allowed"},
		"variable likewise": {required: "refuse_system_workspace: true\n", environ: []string{"CAISSON_ACCEPT_SYSTEM_WORKSPACE=1"}, want: "requirements: CAISSON_ACCEPT_SYSTEM_WORKSPACE true is not allowed"},
		"key not allowed":   {user: "accept_system_workspace: true\n", required: "refuse_system_workspace: true\n", want: "requirements: accept_system_workspace true is not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			o := writeLayers(t, tc.user, tc.required)
			o.Environ = append(tc.environ, "OPENAI_API_KEY=k")
			o.Flags, o.Asked = tc.flags, tc.asked
			o.Profile, o.Workspace = tc.profile, tc.workspace
			c, err := Load(o)
			if err == nil {
				_, err = c.ToolPolicy("default")
			}
			if err == nil {
				_, err = c.SandboxResources()
			}
			if err == nil {
				_, err = c.SelectModels(o.Environ)
			}
			if err == nil {
				_, err = c.FetchOptions()
			}
			if err == nil {
				_, _, err = c.EgressOptions()
			}
			want := strings.NewReplacer("USER", o.Path, "REQUIRED", o.Requirements).Replace(tc.want)
			if err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%v, want %s…", err, want)
			}
		})
	}
}

// TestVariablesOfFlags: a variable of the command line replaces the file's, and errors
// name the origin.
func TestVariablesOfFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		user, required string
		flags          File
		want           string
	}{
		"the file":           {user: "env_from: [TOKEN]\n", want: "TOKEN=own"},
		"value":              {user: "env_from: [TOKEN]\n", flags: File{Env: map[string]string{"TOKEN": "x"}}, want: "TOKEN=x"},
		"name":               {user: "env: {TOKEN: x, A: b}\n", flags: File{MoreEnvFrom: []string{"TOKEN"}}, want: "A=b TOKEN=own"},
		"name of --env-from": {user: "env: {TOKEN: x, A: b}\n", flags: File{EnvFrom: []string{"TOKEN"}}, want: "A=b TOKEN=own"},
		"two flags":          {flags: File{Env: map[string]string{"TOKEN": "x"}, MoreEnvFrom: []string{"TOKEN"}}, want: "--env: TOKEN is in env too; keep one of them"},
		"unset":              {user: "env_from: [TOKEN]\n", flags: File{MoreEnvFrom: []string{"UNSET"}}, want: "--env: UNSET is not set in caisson's environment; export it, or write NAME=VALUE"},
		"unset of the file":  {user: "env_from:\n  - UNSET\n", flags: File{MoreEnvFrom: []string{"TOKEN"}}, want: "USER:2:5: env_from: UNSET is not set in caisson's environment; export it, or take it out of env_from"},
		"unset of --env-from": {
			flags: File{EnvFrom: []string{"UNSET"}, MoreEnvFrom: []string{"TOKEN"}},
			want:  "--env-from: UNSET is not set in caisson's environment; export it, or take it out of env_from",
		},
		"required": {
			user: "env_from: [TOKEN]\n", required: "env_from: [CI_*]\n", flags: File{MoreEnvFrom: []string{"CI_A"}},
			want: "requirements: env_from TOKEN is not allowed on this machine; choose what the administrator's file allows",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := writeLayers(t, tc.user, tc.required)
			o.Environ, o.Flags = []string{"TOKEN=own"}, tc.flags
			c, err := Load(o)
			var got []string
			if err == nil {
				got, err = c.Variables(newLookup(o.Environ))
			}
			text := strings.Join(got, " ")
			if e, ok := errors.AsType[*Error](err); ok {
				text = e.Error() + "; " + e.Hint
			}
			if want := strings.ReplaceAll(tc.want, "USER", o.Path); text != want {
				t.Errorf("%s, want %s", text, want)
			}
		})
	}
}
