package main

import (
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/doctor"
)

// TestDoctorMemory: a rule of class write also opens the memory tools, which is
// reported unless a rule names them.
func TestDoctorMemory(t *testing.T) {
	const said = "memory_add, whose notes later sessions are given, runs without asking (class write)"
	for _, tt := range []struct {
		name, text string
		result     doctor.Result
		words      string
	}{
		{"by its class", "memory_tools: true\npolicy: {default: {write: auto}}", doctor.Warning, said},
		{"by its name", "memory_tools: true\npolicy: {default: {write: auto}, tools: {memory_add: auto}}", "", said},
		{"asked about by its name", "memory_tools: true\npolicy: {default: {write: auto}, tools: {memory_add: prompt}}", "", said},
		{"a trusted folder", "memory_tools: true\npolicy: {relaxed_workspaces: [/usr]}", "", "memory_add, whose notes"},
		{"in the sandbox alone", "memory_tools: true\npolicy: {preset: sandboxed}", "", "memory_add, whose notes"},
		{"asked about", "memory_tools: true\npolicy: {preset: default}", "", "memory_add, whose notes"},
	} {
		requireFinding(t, tt.name, openTestBackends(t, tt.text).checkPolicy(nil), tt.result, tt.words)
	}
}

// TestDoctorNotBinding: restricting a tool that changes files is pointless, which is
// reported, unless commands are refused too.
func TestDoctorNotBinding(t *testing.T) {
	const said = "does not bind commands"
	for _, tt := range []struct {
		name, text string
		result     doctor.Result
		words      string
	}{
		{"one tool", "policy: {tools: {delete_file: deny}}", doctor.Warning, "the restriction of delete_file " + said},
		{"two tools", "policy: {preset: default, tools: {apply_patch: prompt, write_file: prompt}}", doctor.Warning, "the restriction of write_file, apply_patch " + said},
		{"the class", "policy: {preset: sandboxed, default: {write: deny}}", doctor.Warning, said},
		{"commands are asked about", "policy: {default: {execute: prompt}, tools: {delete_file: deny}}", doctor.Warning, said},
		{"the shell alone is refused, and commands with it", "policy: {tools: {delete_file: deny, shell: deny}}", "", said},
		{"commands are refused", "policy: {default: {execute: deny}, tools: {delete_file: deny}}", "", said},
		{"readonly", "policy: {preset: readonly}", "", said},
		{"nothing is restricted", "policy: {preset: sandboxed, tools: {delete_file: auto}}", "", said},
	} {
		findings := openTestBackends(t, tt.text).checkPolicy(nil)
		requireFinding(t, tt.name, findings, tt.result, tt.words)
		for _, f := range findings {
			if strings.Contains(f.Detail, said) && !strings.Contains(f.Hint, "execute: deny") {
				t.Errorf("%s: %q does not name execute: deny", tt.name, f.Hint)
			}
		}
	}
}
