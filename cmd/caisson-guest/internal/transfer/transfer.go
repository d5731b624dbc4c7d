// Package transfer gets files into a sandbox and out of it. The guest runs
// these commands itself: the sandbox's commands could stop a process with their
// identity, and write its output in its place.
package transfer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/observe"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
)

const (
	failed     = 1
	wrongUsage = 2
)

// Command is a command whose word and arguments package archive documents.
type Command struct {
	// Argv is the guest's binary, a word and its arguments. Relative paths are
	// below Dir.
	Argv []string
	Dir  string
	// The caller closes the streams, which also ends the command early.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Stop is closed to end the command early.
	Stop <-chan struct{}
}

// IsCommand reports whether an argument vector is a command of this package.
func IsCommand(guest string, argv []string) bool {
	return len(argv) > 1 && argv[0] == guest && slices.Contains([]string{archive.PackWord, archive.UnpackWord, archive.PackChangesWord, archive.UnpackChangesWord}, argv[1])
}

// Run runs the command on the calling thread, and returns its exit status.
func (c Command) Run() int {
	args := c.Argv[2:]
	switch c.Argv[1] {
	case archive.PackWord:
		if len(args) == 1 {
			args = append(args, "")
		}
		if len(args) != 2 {
			return c.report(wrongUsage, errors.New("usage: pack PATH [NAME]"))
		}
		return c.pack(func(w io.Writer, o archive.PackOptions) error {
			o.Name = args[1]
			return archive.Pack(w, c.path(args[0]), o)
		})
	case archive.PackChangesWord:
		return c.packChanges(args)
	case archive.UnpackChangesWord:
		return c.unpackChanges(args)
	}
	if len(args) != 1 {
		return c.report(wrongUsage, errors.New("usage: unpack DIRECTORY"))
	}
	return c.unpack(args[0], archive.UnpackOptions{})
}

func (c Command) path(arg string) string {
	if path.IsAbs(arg) {
		return arg
	}
	return c.Dir + "/" + arg
}

func (c Command) packChanges(args []string) int {
	if len(args) < 3 {
		return c.report(wrongUsage, errors.New("usage: pack-changes SINCE LAYER DIRECTORY"))
	}
	since, err := strconv.ParseInt(args[0], 10, 64)
	layer, layerErr := strconv.ParseInt(args[1], 10, 64)
	if err := errors.Join(err, layerErr); err != nil {
		return c.report(wrongUsage, err)
	}
	mounts, err := observe.MountPoints()
	if err != nil {
		return c.report(failed, err)
	}
	mounted := map[string]bool{}
	for _, m := range mounts {
		mounted[m] = true
	}
	return c.pack(func(w io.Writer, o archive.PackOptions) error {
		o.Skip, o.LayerSince = func(path string) bool { return mounted[path] || c.stopped() }, time.Unix(0, layer)
		return archive.PackChanges(w, args[2:], time.Unix(0, since), o)
	})
}

func (c Command) stopped() bool {
	select {
	case <-c.Stop:
		return true
	default:
		return false
	}
}

// unpackChanges makes the changes of another sandbox, except symlinks that a
// [archive.LinkRule] leaves out.
func (c Command) unpackChanges(args []string) int {
	except := slices.Index(args, archive.ExceptWord)
	if except < 1 {
		return c.report(wrongUsage, fmt.Errorf("usage: unpack-changes DIRECTORY [WITHIN...] %s [EXCEPT...]", archive.ExceptWord))
	}
	mounts, err := observe.MountPoints()
	if err != nil {
		return c.report(failed, err)
	}
	names := func(paths []string) (names []string) {
		for _, p := range paths {
			if p = strings.TrimPrefix(path.Clean(p), "/"); p == "" {
				p = "."
			}
			names = append(names, p)
		}
		return names
	}
	return c.unpack(args[0], archive.UnpackOptions{Bounds: archive.Bounds{Steps: archive.MaxSteps}, Changes: true, Links: &archive.LinkRule{
		Within: names(args[1:except]), Except: names(args[except+1:]), Mounts: names(mounts),
		LeftOut: func(name, target string) {
			fmt.Fprintf(c.Stderr, "%s%q\n", archive.LeftOutPrefix, "/"+name+" -> "+target)
		},
	}})
}

// pack writes an archive to standard output and returns an exit status.
func (c Command) pack(write func(w io.Writer, o archive.PackOptions) error) int {
	status := 0
	o := archive.PackOptions{LeaveOut: func(_ string, err error) error {
		if !errors.Is(err, archive.ErrSpecial) {
			status = archive.StatusIncomplete
		}
		c.report(status, fmt.Errorf("left out: %w", err))
		return nil
	}}
	out := bufio.NewWriterSize(c.Stdout, 64<<10)
	err := write(out, o)
	if err == nil {
		err = out.Flush()
	}
	switch {
	case errors.Is(err, archive.ErrSpecial):
		return c.report(archive.StatusRefused, err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR): // PATH; entries are left out
		return c.report(archive.StatusNoFile, err)
	case err != nil:
		return c.report(failed, err)
	}
	return status
}

// unpack writes the archive from standard input below a directory, and returns
// an exit status.
func (c Command) unpack(dir string, o archive.UnpackOptions) int {
	err := archive.UnpackWith(bufio.NewReaderSize(c.Stdin, 64<<10), c.path(dir), o)
	switch {
	case errors.Is(err, archive.ErrNoDirectory):
		return c.report(archive.StatusNoDirectory, err)
	case errors.Is(err, archive.ErrEntry), errors.Is(err, archive.ErrMalformed):
		return c.report(archive.StatusRefused, err)
	case err != nil:
		return c.report(failed, err)
	}
	return 0
}

// report writes an error to standard error and returns the status.
func (c Command) report(status int, err error) int {
	fmt.Fprintln(c.Stderr, err)
	return status
}
