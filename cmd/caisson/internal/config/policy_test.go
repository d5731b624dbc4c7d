package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
)

// TestPresetAboveKeepsDenialsAlone: --policy replaces everything except denials.
func TestPresetAboveKeepsDenialsAlone(t *testing.T) {
	user := &Policy{RelaxedWorkspaces: []string{"/src"}, PolicyRules: PolicyRules{
		Preset: new("default"), Default: map[string]string{"network": "deny", "write": "auto"}, Tools: map[string]string{"shell": "auto", "delete_file": "deny"},
		Commands:          map[string]string{"make *": "auto", "git push *": "deny"},
		DangerousCommands: []string{"terraform destroy"},
	}}
	got := user.overlaidBy(&Policy{PolicyRules: PolicyRules{Preset: new("strict")}})
	want := &Policy{PolicyRules: PolicyRules{
		Preset: new("strict"), Default: map[string]string{"network": "deny"}, Tools: map[string]string{"delete_file": "deny"}, Commands: map[string]string{"git push *": "deny"}, DangerousCommands: []string{"terraform destroy"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// A profile without a preset adds to the existing policy, key by key.
	got = user.overlaidBy(&Policy{PolicyRules: PolicyRules{Tools: map[string]string{"shell": "prompt"}}})
	if got.Tools["shell"] != "prompt" || got.Tools["delete_file"] != "deny" || *got.Preset != "default" || len(got.RelaxedWorkspaces) != 1 {
		t.Errorf("%+v", got)
	}
	if user.Tools["shell"] != "auto" {
		t.Error("the lower layer was changed")
	}
}

func TestTrustedWorkspacesAreResolved(t *testing.T) {
	home := t.TempDir()
	home, err := filepath.EvalSymlinks(home)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"src", "elsewhere"} {
		if err := os.Mkdir(filepath.Join(home, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("elsewhere", filepath.Join(home, "link")); err != nil {
		t.Fatal(err)
	}
	path := write(t, "config.yaml", "policy: {preset: default, relaxed_workspaces: [~/src, ~/link, ~/none/../later], relaxed_modes: {execute: prompt_once}}")
	c, err := Load(Options{Path: path, Environ: []string{"HOME=" + home}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.ToolPolicy("ci")
	if err != nil {
		t.Fatal(err)
	}
	for workspace, want := range map[string]policy.Mode{
		"src": policy.ModeAuto, "src/app": policy.ModeAuto, "elsewhere": policy.ModeAuto, "later": policy.ModeAuto,
		"link": policy.ModePrompt, "src-evil": policy.ModePrompt, ".": policy.ModePrompt,
	} {
		got := p.Decide(tools.Definition{Name: "write_file", Class: tools.ClassWrite, Runs: tools.PlaceSandbox}, filepath.Join(home, workspace)).Mode
		if got != want {
			t.Errorf("write in %s: %s, want %s", workspace, got, want)
		}
	}
	if got := p.Decide(tools.Definition{Name: "shell", Class: tools.ClassExecute, Runs: tools.PlaceSandbox}, filepath.Join(home, "src")).Mode; got != policy.ModePromptOnce {
		t.Errorf("execute: %s", got)
	}
	for _, text := range []string{"[src]", "['~other/src']", "['']"} {
		c, err := Load(Options{Path: write(t, "c.yaml", "policy: {relaxed_workspaces: "+text+"}"), Environ: []string{"HOME=" + home}})
		if err == nil {
			_, err = c.ToolPolicy("ci")
		}
		if err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
	c, err = Load(Options{Path: path})
	if err == nil {
		_, err = c.ToolPolicy("ci")
	}
	if err == nil {
		t.Error("~ is accepted without a home")
	}
}

// TestOnPromptAsksForPrompts: setting on_prompt means wanting prompts instead of ci's
// refusals.
func TestOnPromptAsksForPrompts(t *testing.T) {
	def := tools.Definition{Name: "fetch", Class: tools.ClassNetwork, Runs: tools.PlaceHost}
	for name, tc := range map[string]struct {
		opts Options
		want policy.Mode
	}{
		"ci":                {Options{}, policy.ModeDeny},
		"a flag":            {Options{Flags: File{Bounds: Bounds{OnPrompt: new("fail")}}}, policy.ModePrompt},
		"the environment":   {Options{Environ: []string{"CAISSON_ON_PROMPT=fail"}}, policy.ModePrompt},
		"a file says less":  {Options{Path: write(t, "c.yaml", "on_prompt: fail")}, policy.ModeDeny},
		"a project refuses": {Options{Flags: File{Bounds: Bounds{OnPrompt: new("fail")}}, Project: project("policy: {preset: ci}")}, policy.ModeDeny},
	} {
		c, err := Load(tc.opts)
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.ToolPolicy("ci")
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Decide(def, "").Mode; got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}
