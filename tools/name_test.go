package tools

import (
	"strings"
	"testing"
)

func TestParseName(t *testing.T) {
	tests := []struct {
		name string
		wire LLMName // "" where the name is refused
	}{
		{"shell", "shell"},
		{"read_file", "read_file"},
		{"a1_b2", "a1_b2"},
		{"github/create_issue", "github__create_issue"},
		{"a-b/C.d", "a-b__C_d"},
		{"a.b/c", ""},
		{"a-b/C-d", "a-b__C-d"},
		{"srv/a/b", "srv__a__b"},
		{"srv/a__b", "srv__a__b"},
		{"", ""},
		{"Shell", ""},
		{"read-file", ""},
		{"a__b", ""},
		{"_a", ""},
		{"a_", ""},
		{"1a", ""},
		{"a b", ""},
		{"a.b", ""},
		{"a:b", ""},
		{"ä", ""},
		{"a\x00", ""},
		{"a\n", ""},
		{"/a", ""},
		{"a/", ""},
		{"/", ""},
		{"a__b/c", ""},
		{"_a/b", ""},
		{"a/b c", ""},
		{"a/../b", "a______b"},
		{strings.Repeat("a", 128), LLMName(strings.Repeat("a", 128))},
		{strings.Repeat("a", 129), ""},
		{"srv/" + strings.Repeat("a", 123), LLMName("srv__" + strings.Repeat("a", 123))},
		{"srv/" + strings.Repeat("a", 124), ""},
	}
	for _, tt := range tests {
		got, err := ParseName(tt.name)
		if (err == nil) != (tt.wire != "") {
			t.Errorf("ParseName(%q) fails with %v, want wire name %q", tt.name, err, tt.wire)
			continue
		}
		if err != nil {
			continue
		}
		if wire, err := got.LLM(); err != nil || wire != tt.wire {
			t.Errorf("%q.LLM() is %q, %v, want %q", got, wire, err, tt.wire)
		}
	}
}

func FuzzParseName(f *testing.F) {
	seeds := []string{"shell", "a/b", "a__b", "a/b__c", "A", ""}
	for _, s := range seeds {
		f.Add(s)
	}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseName(s)
		if err != nil {
			return
		}
		wire, err := n.LLM()
		if err != nil {
			t.Fatalf("%q has no wire form: %v", s, err)
		}
		if strings.ContainsAny(string(wire), "/.") || len(wire) > MaxNameBytes {
			t.Fatalf("%q gives wire form %q", s, wire)
		}
		if n.Server() == "" && strings.Contains(string(wire), "__") {
			t.Fatalf("a name of our own, %q, reads as a server's", s)
		}
	})
}

func TestOperatorName(t *testing.T) {
	for in, want := range map[string]Name{
		"shell": "shell", "write_file": "write_file", "notion/create-pages": "notion/create-pages", "notion__create-pages": "notion/create-pages",
		"a__b__c": "a/b__c", "a/b__c": "a/b__c", "a/b.c": "a/b.c",
		"": "", "__foo": "", "foo__": "", "Shell": "", "a b": "", "server/": "", "a.b": "",
	} {
		got, err := OperatorName(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("OperatorName(%q) is %q, %v, want %q", in, got, err, want)
		}
	}
	if !Name("a/b").Same("a__b") || !Name("a/b/c").Same("a__b__c") || !Name("a/b.c").Same("a__b_c") || Name("a/b").Same("a_b") || Name("a").Same("b") {
		t.Error("names are not compared by their wire form")
	}
}

func TestNamesAreShortenedStably(t *testing.T) {
	long := Name("srv/" + strings.Repeat("a", 100))
	got, err := long.LLMWithin(64)
	if want := LLMName("srv__" + strings.Repeat("a", 46) + "_45064f497536"); err != nil || got != want || len(got) != 64 {
		t.Errorf("%q (%d bytes), %v, want %q", got, len(got), err, want)
	}
	for _, limit := range []int{0, 105, 128} {
		if got, err := long.LLMWithin(limit); err != nil || string(got) != "srv__"+strings.Repeat("a", 100) {
			t.Errorf("within %d bytes: %q, %v", limit, got, err)
		}
	}
	if got, err := Name("srv/" + strings.Repeat("a", 99) + "b").LLMWithin(64); err != nil || got == "srv__"+LLMName(strings.Repeat("a", 46))+"_45064f497536" {
		t.Errorf("another tool has the same name: %q, %v", got, err)
	}
	if got, err := long.LLMWithin(12); err == nil {
		t.Errorf("within 12 bytes: %q", got)
	}
	if got, err := Name("a b").LLMWithin(64); err == nil {
		t.Errorf("a name that is none: %q", got)
	}
}
