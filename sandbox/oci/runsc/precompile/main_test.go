package main

import (
	"bytes"
	"encoding/gob"
	"os"
	"strings"
	"testing"
)

// The tests render in a child process of their own binary.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == renderArgument {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestCompare compares the filters rendered by another process with those of a
// start, byte by byte.
func TestCompare(t *testing.T) {
	rendered, err := renderInChild()
	if err != nil {
		t.Fatal(err)
	}
	if err := rendered.compare(); err != nil {
		t.Error(err)
	}
	if source := rendered.source(); strings.Count(source, "precompiledseccomp.Program{") != 5 {
		t.Errorf("the file does not have five programs:\n%.2000s", source)
	}
}

// Each control is a filter that differs in one way that compare must find.
func TestCompareFindsDifferences(t *testing.T) {
	rendered, err := renderInChild()
	if err != nil {
		t.Fatal(err)
	}
	var encoded bytes.Buffer
	if err := gob.NewEncoder(&encoded).Encode(rendered); err != nil {
		t.Fatal(err)
	}
	tests := map[string]func(p *programs){
		"one bit of the sentry's": func(p *programs) { p.Sentry[0].Bytecode32[101] ^= 1 },
		"one bit of the gofer's":  func(p *programs) { p.Gofer[1].Bytecode32[101] ^= 1 },
		"another key":             func(p *programs) { p.Gofer[0].Name += " " },
		"the gofer's exchanged":   func(p *programs) { p.Gofer[0].Bytecode32 = p.Gofer[1].Bytecode32 },
		"a process number that is no variable": func(p *programs) {
			for _, suffix := range []string{"_high32bits", "_low32bits"} {
				if p.Sentry[0].VarOffsets["self_pid"+suffix] == nil {
					t.Errorf("self_pid%s is not in the sentry's filter", suffix)
				}
				p.Sentry[0].VarOffsets["self_pid"+suffix] = nil
			}
		},
		"no programs": func(p *programs) { *p = programs{} },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			var rendered programs
			if err := gob.NewDecoder(bytes.NewReader(encoded.Bytes())).Decode(&rendered); err != nil {
				t.Fatal(err)
			}
			change(&rendered)
			if rendered.compare() == nil {
				t.Error("no difference was found")
			}
		})
	}
}
