package tools

import "testing"

func TestIsSpelling(t *testing.T) {
	for foreign, names := range foreignTools {
		if foreign != plainName(foreign) || len(names) == 0 {
			t.Errorf("%q is never found", foreign)
		}
	}
	for _, test := range []struct {
		written string
		of      Name
		want    bool
	}{
		{"read_file", NameReadFile, true},
		{"ReadFile", NameReadFile, true},
		{"Read", NameReadFile, true},
		{"Bash", NameShell, true},
		{"Read", NameWriteFile, false},
		{"WebSearch", NameShell, false},
		{"", NameShell, false},
	} {
		if got := IsSpelling(test.written, test.of); got != test.want {
			t.Errorf("IsSpelling(%q, %q) = %v", test.written, test.of, got)
		}
	}
}
