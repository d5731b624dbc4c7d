package worktest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// Ids of files that belong to neither the workspace's owner nor commands.
const (
	ThirdUID = 4242
	ThirdGID = 4343
)

// Furnish fills a workspace of uid and gid with things that are difficult for
// mounts: directories to remove, replace and rename, hard links, symlinks
// inside and out, a FIFO, a script, a file of 64 MiB. As root it adds files of
// third ids and setgid directories.
func Furnish(t testing.TB, dir string, uid, gid int) {
	t.Helper()
	Run(t, dir, `set -e; umask 022
		mkdir -p keep/deep gone opaque/in moved/sub; echo kept >keep/deep/f; echo x >gone/f; echo x >opaque/in/f; echo m >moved/sub/f
		echo one >linked; ln linked linked2; ln -s keep/deep/f link; ln -s /etc/passwd outside; mkfifo fifo
		printf '#!/bin/sh\necho old\n' >script; chmod 755 script; echo ro >readonly; chmod 444 readonly
		truncate -s 64M big; printf end >>big; mkdir set; chmod 2775 set`)
	if os.Geteuid() == 0 {
		Run(t, dir, fmt.Sprintf(`set -e; umask 022; echo t >third; echo h >hidden; echo o >group
			chown -hR %[1]d:%[2]d .; chown %[3]d:%[4]d third hidden; chmod 666 third; chmod 600 hidden
			chgrp %[4]d set group; chmod 2777 set`, uid, gid, ThirdUID, ThirdGID))
	}
	Run(t, dir, "touch -d @1000000000 keep/deep/f")
}

// Run runs a script on the host.
func Run(t testing.TB, dir, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// CreateLayers makes the layers of a session below the state directory, as a
// runner does, and puts them into the session's spec.
func CreateLayers(t testing.TB, spec *sandbox.Spec, mode sandbox.WorkspaceMode, state string) *overlay.Layers {
	t.Helper()
	w := &spec.Workspace
	w.Mode, w.Layers = mode, filepath.Join(state, "layers")
	layers, err := overlay.Create(w.Layers, overlay.CreateOptions{Session: spec.Session, Path: w.Path, Workspace: w.Dir})
	must(t, err)
	t.Cleanup(func() { must(t, layers.Close()) })
	must(t, layers.Record(t.Context(), w.Dir))
	return layers
}

// MakeLayers makes the layers of an overlay as package sandbox/overlay does.
func MakeLayers(t testing.TB, layers, workspace string) {
	t.Helper()
	var st unix.Stat_t
	upper := filepath.Join(layers, "upper")
	for _, err := range []error{
		unix.Stat(workspace, &st), os.MkdirAll(layers, 0o700), os.Mkdir(upper, 0o700), os.Mkdir(filepath.Join(layers, "work"), 0o700),
	} {
		must(t, err)
	}
	if os.Geteuid() == 0 {
		must(t, os.Chown(upper, int(st.Uid), int(st.Gid)))
	}
	must(t, unix.Chmod(upper, st.Mode&0o7777))
}
