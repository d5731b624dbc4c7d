//go:build linux

package main

import "testing"

// TestDoctorMemory: a rule of class write opens the memory tools too, and is said
// to; a rule that names them was meant.
func TestDoctorMemory(t *testing.T) {
	const said = "memory_add, whose notes later sessions are given, runs without asking (class write)"
	for _, tt := range []struct{ name, text, result, words string }{
		{"by its class", "memory_tools: true\npolicy: {default: {write: auto}}", resultWarning, said},
		{"by its name", "memory_tools: true\npolicy: {default: {write: auto}, tools: {memory_add: auto}}", "", said},
		{"asked about by its name", "memory_tools: true\npolicy: {default: {write: auto}, tools: {memory_add: prompt}}", "", said},
		{"a trusted folder", "memory_tools: true\npolicy: {trusted_workspaces: [/usr]}", "", "memory_add, whose notes"},
		{"in the sandbox alone", "memory_tools: true\npolicy: {preset: sandboxed}", "", "memory_add, whose notes"},
		{"asked about", "memory_tools: true\npolicy: {preset: default}", "", "memory_add, whose notes"},
	} {
		requireFinding(t, tt.name, doctored(t, tt.text).examinePolicy(), tt.result, tt.words)
	}
}
