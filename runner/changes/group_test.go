package changes

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/runner/record"
)

// TestGroups: a package manager's files take one line, after what they must not bury.
func TestGroups(t *testing.T) {
	const node = "node, bun, deno or their tools"
	list := []record.HostExecuted{
		{Path: "ci/deep/in/the/tree/Makefile", By: "make"},
		{Path: "sub/.caisson/config.yaml", By: "an agent", Deleted: true},
		{Path: "new.mk", By: "make", Added: true},
		{Path: "web/node_modules/x/.envrc", By: "a shell", Added: true},
		{Path: "links/far", By: bySymlink, Target: "/home/u/.ssh/authorized_keys", Added: true},
		{Path: "web/package.json", By: node, Added: true},
	}
	for i := range 83 {
		list = append(list, record.HostExecuted{Path: fmt.Sprintf("web/node_modules/m%d/package.json", i), By: node, Added: true})
	}
	for i := range 4 {
		list = append(list,
			record.HostExecuted{Path: fmt.Sprintf("web/node_modules/m%d/Makefile", i), By: "make", Added: true},
			record.HostExecuted{Path: fmt.Sprintf(".github/workflows/%d.yml", i), By: "CI"},
			record.HostExecuted{Path: fmt.Sprintf("links/%d", i), By: bySymlink, Target: "/etc", Added: i > 0},
			record.HostExecuted{Path: fmt.Sprintf("old/.caisson/%d", i), By: "an agent", Deleted: true},
			record.HostExecuted{Path: fmt.Sprintf(".cargo/%d.toml", i), By: "cargo", Added: true})
	}
	var got []string
	files := 0
	for _, g := range GroupHostExecuted(list) {
		got = append(got, g.String())
		files += len(g.Files)
	}
	want := []string{
		"4 symlinks in links lead out of the workspace, to /etc",
		"read 4 changed files in .github/workflows before you go on: CI may run or obey them",
		"4 deleted files in old/.caisson: what they asked of an agent no longer matters",
		"sub/.caisson/config.yaml was deleted: what it asked of an agent no longer matters",
		"read ci/deep/in/the/tree/Makefile before you go on: make may run or obey it",
		"read new.mk before you go on: make may run or obey it",
		"read 4 new files in .cargo before you go on: cargo may run or obey them",
		"links/far is a symlink that leads out of the workspace, to /home/u/.ssh/authorized_keys",
		"read web/package.json before you go on: node, bun, deno or their tools may run or obey it",
		"read 4 new files in web/node_modules before you go on: make may run or obey them",
		"read 83 new files in web/node_modules before you go on: node, bun, deno or their tools may run or obey them",
		"read web/node_modules/x/.envrc before you go on: a shell may run or obey it",
	}
	if diff := cmp.Diff(want, got); diff != "" || files != len(list) {
		t.Errorf("%d of %d files (-want +got):\n%s", files, len(list), diff)
	}
}
