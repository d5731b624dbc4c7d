package worktest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
)

// Archives checks that commands with the agent's identity get files into a
// sandbox and out of it as archives.
func Archives(t *testing.T, s sandbox.Sandbox) {
	t.Helper()
	content := bytes.Repeat([]byte("0123456789abcdef"), 20<<10)
	var in bytes.Buffer
	w := tar.NewWriter(&in)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "in/", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "in/f\xff", Mode: 0o640, Size: int64(len(content))},
		{Typeflag: tar.TypeLink, Name: "in/hard", Linkname: "in/f\xff"},
		{Typeflag: tar.TypeSymlink, Name: "in/link", Linkname: "/etc/passwd"},
	} {
		must(t, w.WriteHeader(&h))
		if h.Size > 0 {
			_, err := w.Write(content)
			must(t, err)
		}
	}
	must(t, w.Close())
	run := func(stdin io.Reader, args ...string) (string, string, sandbox.Exit) {
		var out, errOut bytes.Buffer
		exit, err := sandbox.Run(t.Context(), s, sandbox.Command{Argv: append([]string{sandbox.GuestPath}, args...), Stdin: stdin, Stdout: &out, Stderr: &errOut})
		must(t, err)
		return out.String(), errOut.String(), exit
	}
	if _, text, exit := run(bytes.NewReader(in.Bytes()), archive.UnpackWord, "/tmp"); !exit.Status.Success() {
		t.Fatalf("unpack: %v: %s", exit.Status, text)
	}
	if out, _ := Shell(t, s, `cd /tmp/in; stat -c '%a %u %h %F' f* hard link; [ f* -ef hard ] && readlink link; id -u`); out != "640 10001 2 regular file\n640 10001 2 regular file\n777 10001 1 symbolic link\n/etc/passwd\n10001\n" {
		t.Errorf("unpacked: %q", out)
	}
	out, text, exit := run(nil, archive.PackWord, "/tmp/in", "out")
	if !exit.Status.Success() {
		t.Fatalf("pack: %v: %s", exit.Status, text)
	}
	var names []string
	r := tar.NewReader(bytes.NewReader([]byte(out)))
	for h, err := r.Next(); err == nil; h, err = r.Next() {
		names = append(names, h.Name)
		if data, err := io.ReadAll(r); h.Typeflag == tar.TypeReg && (err != nil || !bytes.Equal(data, content)) {
			t.Errorf("packed %q: %d bytes, %v", h.Name, len(data), err)
		}
	}
	if len(names) != 4 || names[0] != "out/" || names[3] != "out/link" {
		t.Errorf("packed %q", names)
	}
	cutOffArchive(t, s, in.Bytes()[:in.Len()/2])
	OutOfReach(t, s)
	if _, exit := Shell(t, s, "mkfifo /tmp/pipe"); !exit.Status.Success() {
		t.Errorf("make a pipe: %v", exit.Status)
	}
	for _, c := range []struct {
		stdin []byte
		word  string
		path  string
		want  int
	}{
		{in.Bytes(), archive.UnpackWord, "/usr", 1},
		{in.Bytes()[:in.Len()/2], archive.UnpackWord, "/tmp", archive.StatusRefused},
		{in.Bytes(), archive.UnpackWord, "/none", archive.StatusNoDirectory},
		{in.Bytes(), archive.UnpackWord, "/tmp/pipe", archive.StatusNoDirectory},
		{nil, archive.PackWord, "/none", archive.StatusNoFile},
		{nil, archive.PackWord, "/etc/passwd/none", archive.StatusNoFile},
		{nil, archive.PackWord, "/tmp/pipe", archive.StatusRefused},
		{nil, archive.PackWord, "/dev/null", archive.StatusRefused},
	} {
		if out, text, exit := run(bytes.NewReader(c.stdin), c.word, c.path); exit.Status.Code != c.want || text == "" || out != "" {
			t.Errorf("%s %s: %v, %q, want status %d", c.word, c.path, exit.Status, text, c.want)
		}
	}
}

// OutOfReach checks that commands find no process that is packing files.
func OutOfReach(t *testing.T, s sandbox.Sandbox) {
	t.Helper()
	const find = `for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline; echo; done 2> /dev/null | grep -c ' [p]ack /tmp'`
	if _, exit := Shell(t, s, "i=0; while [ $i -lt 200000 ]; do echo 0123456789012345678901234567890123456789012345678; i=$((i+1)); done > /tmp/large"); !exit.Status.Success() {
		t.Fatalf("write a large file: %v", exit.Status)
	}
	for _, c := range []struct {
		argv []string
		want bool
	}{
		{[]string{"/bin/sh", "-c", `cat /tmp/large "$0"; :`, "pack", "/tmp/large"}, true},
		{[]string{sandbox.GuestPath, archive.PackWord, "/tmp/large"}, false},
	} {
		r, w := io.Pipe()
		p, err := s.Start(t.Context(), sandbox.Command{Argv: c.argv, Stdout: w})
		must(t, err)
		_, err = io.ReadFull(r, make([]byte, 1)) // more follows than the streams hold
		must(t, err)
		if found, _ := Shell(t, s, find); (found != "0\n") != c.want {
			t.Errorf("%q: commands find %q processes", c.argv, found)
		}
		go func() { _, _ = io.Copy(io.Discard, r) }() // always nil
		if exit, err := p.Wait(); err != nil || !exit.Status.Success() {
			t.Errorf("%q: %v, %v", c.argv, exit.Status, err)
		}
		_ = w.Close() // always nil
	}
}

// cutOffArchive checks that unpacking, if cancelled within a file, leaves the
// old file alone.
func cutOffArchive(t *testing.T, s sandbox.Sandbox, beginning []byte) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	r, w := io.Pipe()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = w.Write(beginning) // the command may end before
		for ctx.Err() == nil {
			if out, _ := Shell(t, s, "ls -A /tmp/cut/in 2>&1"); strings.Contains(out, ".part") {
				cancel(errors.New("the client went away"))
			}
		}
	}()
	Shell(t, s, "mkdir -p /tmp/cut/in && cd /tmp/cut/in && printf old > $(printf 'f\\377')")
	exit, err := sandbox.Run(ctx, s, sandbox.Command{Argv: []string{sandbox.GuestPath, archive.UnpackWord, "/tmp/cut"}, Stdin: r})
	_ = r.CloseWithError(io.ErrClosedPipe) // always nil
	cancel(nil)
	<-over
	must(t, err)
	if out, _ := Shell(t, s, "cd /tmp/cut/in && ls -A | wc -l && cat f*"); !exit.Status.Cancelled || out != "1\nold" {
		t.Errorf("an unpacking that was cut off: %v, left %q", exit.Status, out)
	}
}
