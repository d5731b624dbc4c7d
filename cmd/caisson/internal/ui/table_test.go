package ui

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWriteTable(t *testing.T) {
	rows := [][]string{{"TOOL", "CLASS", "WHAT IT DOES"}, {"grep", "read", "Searches the text files of the workspace"}, {"漢字", "none", ""}}
	for columns, want := range map[int]string{
		0: "TOOL  CLASS  WHAT IT DOES\ngrep  read   Searches the text files of the workspace\n漢字  none\n",
		40: "TOOL  CLASS  WHAT IT DOES\n" +
			"grep  read   Searches the text files of\n" +
			"             the workspace\n" +
			"漢字  none\n",
		30: "TOOL  CLASS\n  WHAT IT DOES\n" +
			"grep  read\n  Searches the text files of\n  the workspace\n" +
			"漢字  none\n",
	} {
		var out bytes.Buffer
		if err := WriteTable(&out, columns, rows); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%d columns (-want +got):\n%s", columns, diff)
		}
	}
}
