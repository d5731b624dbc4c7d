package workspace

import (
	"fmt"
	"testing"
)

func TestSymlinkEscapes(t *testing.T) {
	links := map[string]string{
		"abs": "/etc", "up": "..", "here": ".", "loop": "loop", "d/abs": "/etc", "d/here": ".", "d/up": "..", "d/e": "../f/g", "d/deep": "x/y",
	}
	for i := range 40 { // l0 follows 40 symlinks, l1 39
		links[fmt.Sprint("l", i)] = fmt.Sprint("l", i+1)
	}
	links["l39"] = "/etc"
	for _, tt := range []struct {
		path, target string
		want         bool
	}{
		{"a", "/etc", true},
		{"a", "/", true},
		{"a", "b", false},
		{"a", "..", true},
		{"a", "b/../..", true},
		{"a", "b/..", false},
		{"a", "./b//c/.", false},
		{"a", "./..", true},
		{"d/a", "..", false},
		{"d/a", "../b", false},
		{"d/a", "../../b", true},
		{"d/e/a", "../../b", false},
		{"a", "abs", true},
		{"a", "abs/x", true},
		{"a", "up", true},
		{"a", "here/x", false},
		{"a", "here/../x", true},
		{"d/a", "abs", true},
		{"d/a", "up/x", false},
		{"d/a", "up/../x", true},
		{"d/a", "here/../x", false},
		{"d/a", "here/../../x", true},
		{"d/a", "e/../../x", false},
		{"d/a", "e/../../../x", true},
		{"d/a", "deep/../../../x", false},
		{"d/a", "deep/../../../../x", true},
		{"a", "missing/../x", false},
		{"a", "loop", false},
		{"a", "loop/../..", false}, // it leads nowhere
		{"a", "l1", true},
		{"a", "l0", false}, // more symlinks than the kernel follows
	} {
		got := SymlinkEscapes(tt.path, tt.target, func(path string) (string, bool) { target, ok := links[path]; return target, ok })
		if got != tt.want {
			t.Errorf("%s -> %s: leads out is %t, want %t", tt.path, tt.target, got, tt.want)
		}
	}
}
