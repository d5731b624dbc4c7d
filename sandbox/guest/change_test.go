package guest

import (
	"errors"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/workspace"
)

// TestCheckChange checks that a change is accepted up to its bounds.
func TestCheckChange(t *testing.T) {
	write := workspace.Op{Kind: workspace.OpWrite, Path: "f", Content: []byte("123")}
	add := workspace.Op{Kind: workspace.OpAppend, Path: "f", Content: []byte("123")}
	patch := workspace.Op{Kind: workspace.OpPatch, Path: "f"}
	rename := workspace.Op{Kind: workspace.OpRename, Path: "f", To: "d/g"}
	for _, tt := range []struct {
		name   string
		op     workspace.Op
		change workspace.Change // without its kind, and without its path if that is f
		failed bool
		lie    bool
	}{
		{name: "write", op: write, change: workspace.Change{Bytes: 3}},
		{name: "write of more", op: write, change: workspace.Change{Bytes: 4}, lie: true},
		{name: "write that failed", op: write, change: workspace.Change{Bytes: 2}, failed: true},
		{name: "append", op: add, change: workspace.Change{Bytes: 3}},
		{name: "append to more", op: add, change: workspace.Change{Bytes: 4}},
		{name: "append of less", op: add, change: workspace.Change{Bytes: 2}, lie: true},
		{name: "append that failed", op: add, change: workspace.Change{Bytes: 2}, failed: true},
		{name: "patch to nothing", op: patch},
		{name: "negative bytes", op: patch, change: workspace.Change{Bytes: -1}, lie: true},
		{name: "negative replacements", op: patch, change: workspace.Change{Replacements: -1}, lie: true},
		{name: "negative removals", op: patch, change: workspace.Change{Removed: -1}, lie: true},
		{name: "highest mode", op: patch, change: workspace.Change{Mode: 0o7777}},
		{name: "a higher mode", op: patch, change: workspace.Change{Mode: 0o10000}, lie: true},
		{name: "longest content before", op: patch, change: workspace.Change{HasBefore: true, Before: make([]byte, workspace.MaxPreimageBytes)}},
		{name: "longer content before", op: patch, change: workspace.Change{HasBefore: true, Before: make([]byte, workspace.MaxPreimageBytes+1)}, lie: true},
		{name: "content before without saying so", op: patch, change: workspace.Change{Before: []byte("x")}, lie: true},
		{name: "rename", op: rename, change: workspace.Change{To: "d/g"}},
		{name: "rename to another", op: rename, change: workspace.Change{To: "d/h"}, lie: true},
		{name: "no path", op: patch, change: workspace.Change{Path: "-"}, lie: true},
		{name: "no path of a failure", op: patch, change: workspace.Change{Path: "-"}, failed: true},
		{name: "another path of a failure", op: patch, change: workspace.Change{Path: "g"}, failed: true, lie: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.change
			c.Kind = tt.op.Kind
			switch c.Path {
			case "":
				c.Path = "f"
			case "-":
				c.Path = ""
			}
			if err := checkChange(tt.op, c, tt.failed); errors.Is(err, wire.ErrProtocol) != tt.lie {
				t.Errorf("error is %v, a lie is %t", err, tt.lie)
			}
			c.Kind = workspace.OpMkdir
			if err := checkChange(tt.op, c, tt.failed); !errors.Is(err, wire.ErrProtocol) {
				t.Errorf("of another kind: %v", err)
			}
		})
	}
}

// TestLargestOperation checks that an operation of exactly the largest size is
// sent.
func TestLargestOperation(t *testing.T) {
	op := workspace.Op{Kind: workspace.OpPatch, Path: "f", Old: "x"}
	body, err := encodeOp(op)
	if err != nil {
		t.Fatal(err)
	}
	op.Old = strings.Repeat("x", wire.MaxOp-len(body)+1)
	if body, err := encodeOp(op); err != nil || len(body) != wire.MaxOp {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	op.Old += "x"
	if _, err := encodeOp(op); err == nil {
		t.Error("one more is sent")
	}
}

func TestSamePath(t *testing.T) {
	for _, tt := range []struct {
		asked, got string
		want       bool
	}{
		{"f", "f", true},
		{"/workspace/d/../f", "f", true},
		{"/workspace", ".", true},
		{"d/..", ".", true},
		{"..", ".", false},
		{"../workspace", ".", false},
		{"f", "", false},
		{"f", "g", false},
		{"df", "f", false},
		{"f", "d/f", false},
		{"d//f", "d//f", false},
		{"f/", "f/", false},
		{"../f", "../f", false},
		{"../..", "..", false},
		{"f\x00g", "f\x00g", false},
		{"\x00", "\x00", false},
	} {
		if got := samePath(tt.asked, tt.got); got != tt.want {
			t.Errorf("%q for %q: %t", tt.got, tt.asked, got)
		}
	}
}
