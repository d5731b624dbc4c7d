package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestBuiltinAgents checks the embedded definitions as if a user had written them.
func TestBuiltinAgents(t *testing.T) {
	c := Config{}
	if diff := cmp.Diff([]string{"claude", "codex", "gemini", "opencode", "qwen"}, c.AgentNames()); diff != "" {
		t.Error(diff)
	}
	for _, name := range c.AgentNames() {
		a, err := c.Agent(name)
		if err != nil {
			t.Fatal(err)
		}
		if key, fault := a.check(); fault != "" || a.Interactive == nil {
			t.Errorf("%s: %s: %s", name, key, fault)
		}
	}
	// As a user's own they are valid too, so that they can be copied.
	if _, err := Load(Options{Path: write(t, "config.yaml", "agents:\n  "+strings.ReplaceAll(string(agentsText), "\n", "\n  ")+"\n")}); err != nil {
		t.Error(err)
	}
}

const ownAgents = `
agents:
  claude:
    models: {"*": fast, haiku: small}
    env: {ANTHROPIC_LOG: debug}
    files: {.claude/settings.json: "{}"}
    timeout: 2h
    web_search: true
  codex: {dir: ~/codex}
  mine:
    image: true
    protocol: chat
    command: [/app/run, --base, "{{base_url}}", "{{instruction}}"]
    caches: [~/.mine]
    quiet_hosts: [telemetry.example.org]
models:
  fast: {provider: anthropic, model: claude-sonnet-5-5, api_key_env: KEY}
  small: {provider: anthropic, model: claude-haiku-4-5, api_key_env: KEY}
  other: {provider: openai, model: x, base_url: http://127.0.0.1/v1}
  google: {provider: gemini, model: gemini-3-pro}
`

func TestAgents(t *testing.T) {
	c, err := Load(Options{Path: write(t, "config.yaml", ownAgents), Environ: []string{"HOME=/home/x"}})
	if err != nil {
		t.Fatal(err)
	}
	claude, err := c.Agent("claude")
	if err != nil {
		t.Fatal(err)
	}
	if claude.Env["ANTHROPIC_LOG"] != "debug" || claude.Env["DISABLE_AUTOUPDATER"] != "1" || len(claude.Files) != 2 || claude.Command[0] != "claude" || *claude.NPM == "" || !*claude.WebSearch {
		t.Errorf("claude %+v", claude)
	}
	if builtin, err := new(Config).Agent("claude"); err != nil || builtin.Timeout != nil || len(builtin.Files) != 1 || builtin.Env["ANTHROPIC_LOG"] != "" {
		t.Errorf("the built-in agent was changed: %+v, %v", builtin, err)
	}
	codex, err := c.Agent("codex")
	if err != nil || codex.NPM != nil || *codex.Dir != "~/codex" || *codex.Protocol != "responses" {
		t.Errorf("codex %+v, %v", codex, err)
	}
	if dir, err := c.ExpandDir(codex); err != nil || dir != "/home/x/codex" {
		t.Errorf("its directory %q, %v", dir, err)
	}
	if diff := cmp.Diff([]string{"claude", "codex", "gemini", "mine", "opencode", "qwen"}, c.AgentNames()); diff != "" {
		t.Error(diff)
	}
	_, err = c.Agent("cluade")
	if e, ok := errors.AsType[*Error](err); !ok || e.Hint != "did you mean claude?" {
		t.Errorf("unknown: %v", err)
	}
}

func TestAgentModels(t *testing.T) {
	path := write(t, "config.yaml", ownAgents)
	for name, tt := range map[string]struct {
		agent, model string
		want         map[string]string // profiles, or the error's text with key ""
	}{
		"aliases":              {"claude", "", map[string]string{"*": "fast", "haiku": "small"}},
		"the session's":        {"mine", "other", map[string]string{"*": "other"}},
		"responses has chat":   {"mine", "openai/gpt-6", map[string]string{"*": "openai/gpt-6"}},
		"chat isn't responses": {"codex", "other", map[string]string{"": "protocol responses"}},
		"another provider":     {"mine", "fast", map[string]string{"": "protocol chat"}},
		"gemini":               {"gemini", "google", map[string]string{"*": "google"}},
		"no model":             {"codex", "", map[string]string{"": "no OPENAI_API_KEY"}},
		"by its key":           {"gemini", "", map[string]string{"*": "gemini/gemini-2.5-pro"}},
	} {
		t.Run(name, func(t *testing.T) {
			flags := File{}
			if tt.model != "" {
				flags.Model = &tt.model
			}
			c, err := Load(Options{Path: path, Flags: flags, Environ: []string{"HOME=/home/x"}})
			if err != nil {
				t.Fatal(err)
			}
			models, err := c.SelectAgentModels(tt.agent, []string{"KEY=k", "GEMINI_API_KEY=k"})
			if text, fails := tt.want[""]; fails {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("got %v, %v", models, err)
				}
				return
			}
			got := map[string]string{}
			for asked, m := range models {
				got[asked] = m.Profile
			}
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Error(diff, err)
			}
		})
	}
}

func TestBadAgentsAreRefusedWithTheirPlace(t *testing.T) {
	const mine = "agents:\n  mine:\n    image: true\n    protocol: chat\n"
	const command = "    command: [x, '{{instruction}}']\n"
	checkFaults(t, map[string]fault{
		"a name":               {"agents:\n  a/b: {image: true}\n", 2, 3, "can't be the name"},
		"no source":            {"agents:\n  mine:\n    protocol: chat\n" + command, 2, 3, "one of npm, dir"},
		"two sources":          {mine + "    dir: /x\n" + command, 5, 10, "one of npm, dir"},
		"not the image":        {"agents:\n  codex:\n    image: false\n", 2, 3, "one of npm, dir"},
		"no protocol":          {"agents:\n  mine:\n    image: true\n" + command, 2, 3, "protocol is one of"},
		"a protocol":           {"agents:\n  codex:\n    protocol: soap\n", 3, 15, "protocol is one of"},
		"a range":              {"agents:\n  codex:\n    npm: '@openai/codex@latest'\n", 3, 10, "exact version"},
		"an option":            {"agents:\n  codex:\n    npm: --registry=http://evil@1.0.0\n", 3, 10, "exact version"},
		"a relative directory": {"agents:\n  codex:\n    dir: codex\n", 3, 10, "does not begin with / or ~/"},
		"no command":           {mine, 2, 3, "names no program"},
		"no instruction":       {mine + "    command: [x]\n", 5, 5, "no {{instruction}}"},
		"a placeholder":        {mine + "    command: [x, '{{instruction}} {{key}}']\n", 5, 5, "unknown placeholder {{key}}"},
		"one in a file":        {mine + command + "    files:\n      a.json: '{{key}}'\n", 7, 15, "unknown placeholder"},
		"one in a variable":    {mine + command + "    env:\n      A: '{{key}}'\n", 7, 10, "unknown placeholder"},
		"one in stdin":         {mine + command + "    stdin: '{{key}}'\n", 6, 12, "unknown placeholder"},
		"the program":          {mine + "    command: ['{{instruction}}']\n", 5, 5, "not a placeholder"},
		"out of the directory": {"agents:\n  codex:\n    dir: /x\n    command: [../y, '{{instruction}}']\n", 4, 5, "not a path below dir"},
		"a path in a package":  {"agents:\n  codex:\n    command: [bin/codex, '{{instruction}}']\n", 3, 5, "program of the package"},
		"interactive task":     {mine + command + "    interactive: [x, '{{instruction}}']\n", 6, 5, "on a terminal"},
		"interactive program":  {mine + command + "    interactive: [y]\n", 6, 5, "not that of command"},
		"a file outside":       {mine + command + "    files:\n      ../a: x\n", 6, 5, "not a path in the home"},
		"a variable":           {mine + command + "    env:\n      A-B: x\n", 6, 5, "not the name of a variable"},
		"the loader's":         {mine + command + "    env:\n      LD_X: x\n", 7, 13, "LD_X"},
		"a host":               {mine + command + "    quiet_hosts: ['*.example.org']\n", 6, 5, "not the name of a host"},
		"a cache":              {mine + command + "    caches: [/x]\n", 6, 5, "unknown cache"},
		"a time":               {mine + command + "    timeout: 0s\n", 6, 14, "invalid duration"},
		"an unknown key":       {"agents:\n  codex:\n    mount: /x\n", 3, 5, `unknown field "mount"`},
	})
}
