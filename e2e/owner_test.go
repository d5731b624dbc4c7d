package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// ordinary is the user that the tests run caisson as beside root.
const ordinary = 1000

// TestFilesBelongToTheWorkspaceOwner runs caisson as root and as an ordinary
// user on workspaces of either: what commands and tools make belongs to the
// workspace's owner, or the run is refused.
func TestFilesBelongToTheWorkspaceOwner(t *testing.T) {
	if os.Getuid() != 0 {
		lacking(t, "", "needs root, to be both users")
	}
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		for _, runner := range []uint32{0, ordinary} {
			for _, owner := range []uint32{0, ordinary} {
				t.Run(fmt.Sprintf("runner %d owner %d", runner, owner), func(t *testing.T) {
					ownership(t, backend, runner, owner)
				})
			}
		}
	})
}

func ownership(t *testing.T, backend string, runner, owner uint32) {
	m := newMachine(t)
	m.write(t, "there", "before\n")
	for _, path := range []string{m.workspace, filepath.Join(m.workspace, "there")} {
		if err := os.Chown(path, int(owner), int(owner)); err != nil {
			t.Fatal(err)
		}
	}
	if runner != 0 {
		m.become(t, runner, runner, engineGroups(t, backend)...)
	}
	args := m.playing(t,
		[]scriptCall{shell("echo made >by-shell && mkdir folder && echo more >>there && ls -lan")},
		[]scriptCall{call("write_file", map[string]any{"path": "by/tool", "content": "made\n"})},
		[]scriptCall{call("patch_file", map[string]any{"path": "there", "old": "before", "new": "after"})},
	)
	out := m.runTask(t, append([]string{"--backend", backend}, args...)...)
	if runner != 0 && owner != runner {
		out.want(t, 42)
		if !strings.Contains(out.stderr, m.workspace) || !strings.Contains(out.stderr, "own") {
			t.Errorf("the refusal does not say cause and hint:\n%s", out.stderr)
		}
		return
	}
	out.want(t, 0)
	for i, result := range out.records.results(t) {
		if result.IsError {
			t.Errorf("call %d failed: %s", i, result.text())
		}
	}
	for _, name := range []string{"by-shell", "folder", "by", "by/tool", "there"} {
		info, err := os.Lstat(filepath.Join(m.workspace, name))
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); !ok || stat.Uid != owner || stat.Gid != owner {
			t.Errorf("%s belongs to %d:%d, want %d:%d", name, stat.Uid, stat.Gid, owner, owner)
		}
	}
	m.wantNothingLeft(t, out.records[0].Session)
}

// engineGroups are the groups that let an ordinary user reach the engine.
func engineGroups(t *testing.T, backend string) []uint32 {
	t.Helper()
	if backend != "docker" {
		return nil
	}
	socket, ok := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://")
	if !ok {
		socket = "/var/run/docker.sock"
	}
	info, err := os.Stat(socket)
	if err != nil {
		t.Fatal(err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatal("no owner of the engine's socket")
	}
	return []uint32{stat.Gid}
}
