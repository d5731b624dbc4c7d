package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// agentHome returns a hostile workspace with the user's configuration, and programs on
// a PATH: claude of the workspace, then the user's codex.
func agentHome(t *testing.T, config string) (h *hostile, env []string) {
	t.Helper()
	h = newHostile(t)
	for name, text := range map[string]string{
		"ws/claude": "\x7fELF", "home/.config/caisson/config.yaml": config, "home/lib/node_modules/@openai/codex/bin/codex": "\x7fELF",
		"home/lib/node_modules/@openai/codex/package.json": `{"version":"9.8.7"}`,
	} {
		name = filepath.Join(filepath.Dir(h.home), name)
		writeFile(t, name, text, 0o700)
	}
	bin := filepath.Join(h.home, "bin")
	must(t, os.MkdirAll(bin, 0o755))
	must(t, os.Symlink("../lib/node_modules/@openai/codex/bin/codex", filepath.Join(bin, "codex")))
	return h, []string{"PATH=" + h.dir + ":" + bin + ":/usr/bin:/bin"}
}

func TestAgentsList(t *testing.T) {
	h, env := agentHome(t, "agents:\n  mine: {image: true, protocol: chat, command: [mine, '{{instruction}}'], models: {'*': local}}\nmodels:\n  local: {provider: openai, model: x, base_url: http://127.0.0.1/v1}\n")
	got, out, log := h.run(t, append(env, "OPENAI_API_KEY=k"), "agents", "ls", "--json")
	var list []listedAgent
	if err := json.Unmarshal([]byte(out), &list); err != nil || got != 0 || len(list) != 6 {
		t.Fatalf("status %d, %v: %s%s", got, err, out, log)
	}
	byName := map[string]listedAgent{}
	for _, one := range list {
		byName[one.Name] = one
	}
	if one := byName["codex"]; one.Version != "9.8.7" || one.Source != "PATH" || one.Directory != filepath.Join(h.home, "lib/node_modules/@openai/codex") || one.Models["*"] != "openai/gpt-6.2-sol" || len(one.Missing) != 0 {
		t.Errorf("codex %+v", one)
	}
	if one := byName["claude"]; one.Source != "" || !strings.Contains(strings.Join(one.Missing, ";"), "commands in the sandbox can write to") || !strings.Contains(strings.Join(one.Missing, ";"), "ANTHROPIC_API_KEY") {
		t.Errorf("claude of the workspace: %+v", one)
	}
	if one := byName["mine"]; one.Source != "image" || one.Models["*"] != "local" || len(one.Missing) != 0 {
		t.Errorf("mine %+v", one)
	}
	if one := byName["gemini"]; len(one.Missing) != 2 || !strings.Contains(one.Missing[0], "caisson agents install gemini") {
		t.Errorf("gemini %+v", one)
	}
	if marks := h.marked(t); len(marks) > 0 {
		t.Errorf("programs ran: %q", marks)
	}
}

// TestAgentsInstall has a program in the place of npm, which fakeBackend runs.
func TestAgentsInstall(t *testing.T) {
	h, env := agentHome(t, "")
	bin := filepath.Join(h.home, "bin")
	npm := func(script string) {
		must(t, os.WriteFile(filepath.Join(bin, "npm"), []byte("#!/bin/sh\n"+script), 0o755))
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("FAKE_NETWORK", "proxy")
	place := filepath.Join(h.home, ".local/share/caisson/agents/claude")
	npm(`echo "$*" >args; mkdir -p node_modules/.bin node_modules/@anthropic-ai/claude-code/bin; cd node_modules
printf '\177ELF' >@anthropic-ai/claude-code/bin/claude.exe; chmod +x @anthropic-ai/claude-code/bin/claude.exe
echo '{"version":"2.0.0"}' >@anthropic-ai/claude-code/package.json; ln -s ../@anthropic-ai/claude-code/bin/claude.exe .bin/claude`)
	for range 2 { // again replaces it
		if got, out, log := h.run(t, env, "agents", "install", "claude"); got != 0 || out != "installed claude 2.0.0\n" || log != "" {
			t.Fatalf("status %d: %s%s", got, out, log)
		}
	}
	if args, err := os.ReadFile(filepath.Join(place, "args")); err != nil || !strings.Contains(string(args), "--ignore-scripts") || !strings.Contains(string(args), "@anthropic-ai/claude-code@") {
		t.Errorf("npm %s, %v", args, err)
	}
	_, out, _ := h.run(t, env, "agents", "ls")
	if !strings.Contains(out, "caisson  2.0.0") {
		t.Errorf("agents ls: %s", out)
	}
	npm("echo no registry; exit 3")
	if got, out, log := h.run(t, env, "agents", "install", "claude"); got != exitFailed || out != "" || !strings.Contains(log, "no registry") {
		t.Errorf("npm fails: status %d: %s%s", got, out, log)
	}
	npm("true")
	if got, _, log := h.run(t, env, "agents", "install", "claude"); got == 0 || !strings.Contains(log, "not installed") {
		t.Errorf("npm does nothing: status %d: %s", got, log)
	}
	npm("exit 127")
	if got, _, log := h.run(t, env, "agents", "install", "claude"); got != exitFailed || !strings.Contains(log, "has no npm") {
		t.Errorf("without npm: status %d: %s", got, log)
	}
	if entries, err := os.ReadDir(filepath.Dir(place)); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestAgentsCheck(t *testing.T) {
	t.Setenv("FAKE_NETWORK", "proxy")
	h, env := agentHome(t, `
agents:
  silent: {image: true, protocol: chat, command: [echo, "{{instruction}}"]}
  failing: {image: true, protocol: chat, command: [sh, -c, "echo why; exit 4", "{{instruction}}"]}
  absent: {image: true, protocol: chat, command: [no-such-program, "{{instruction}}"]}
`)
	got, out, log := h.run(t, env, "agents", "check", "--json", "silent", "failing", "absent", "gemini")
	var list []checkedAgent
	if err := json.Unmarshal([]byte(out), &list); err != nil || got != exitFailed || len(list) != 4 {
		t.Fatalf("status %d, %v: %s%s", got, err, out, log)
	}
	for i, want := range []string{"did not show the mock's answer", "exit status 4", "lacks a program", "caisson agents install gemini"} {
		if list[i].Works || !strings.Contains(list[i].Problem, want) {
			t.Errorf("%+v, want %s", list[i], want)
		}
	}
	if !strings.Contains(list[1].Output, "why") {
		t.Errorf("output %q", list[1].Output)
	}
}
