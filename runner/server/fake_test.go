package server

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/sandbox"
	guestarchive "github.com/caisson-run/caisson/sandbox/guest/archive"
)

// fakeBackend makes sandboxes in memory that know these commands:
//
//	say TEXT · write NAME TEXT · link NAME TARGET · fill COUNT · flood BYTES · hang · cling
//	gate · cat · env · bytes HEX · terminal (see runTerminal)
//
// Files are really written, in the folder or in a real overlay of it.
type fakeBackend struct {
	fakesandbox.Backend
	// clings is sent to when the command cling has begun, and when it ignores a
	// signal.
	clings chan struct{}
	// gate lets the command gate continue.
	gate chan struct{}

	// transfer, if not nil, replaces the commands that copy files.
	transfer func(context.Context, sandbox.Command) sandbox.ExitStatus

	mu  sync.Mutex
	ran []string
}

func newFakeBackend() *fakeBackend {
	f := &fakeBackend{}
	f.Other = f.run
	return f
}

// commands returns the commands that ran, in order.
func (f *fakeBackend) commands() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, f.ran...)
}

// pathOf returns the path of a file in a sandbox's workspace.
func pathOf(b *fakesandbox.Sandbox, name string) string {
	if b.Spec.Workspace.Mode == sandbox.ModeOverlay {
		return filepath.Join(b.Dir.Name(), name)
	}
	return filepath.Join(b.Spec.Workspace.Path, name)
}

func (f *fakeBackend) run(ctx context.Context, b *fakesandbox.Sandbox, cmd sandbox.Command) (status sandbox.ExitStatus) {
	if cmd.Argv[0] == sandbox.GuestPath {
		return f.copyFiles(ctx, b, cmd)
	}
	text := cmd.Argv[len(cmd.Argv)-1]
	f.mu.Lock()
	f.ran = append(f.ran, text)
	f.mu.Unlock()
	verb, rest, _ := strings.Cut(text, " ")
	switch verb {
	case "say":
		_, _ = io.WriteString(cmd.Stdout, rest+"\n")
	case "write":
		name, content, _ := strings.Cut(rest, " ")
		if os.WriteFile(pathOf(b, name), []byte(content+"\n"), 0o644) != nil {
			status.Code = 1
		}
	case "link":
		name, target, _ := strings.Cut(rest, " ")
		if os.Symlink(target, pathOf(b, name)) != nil {
			status.Code = 1
		}
	case "fill": // files with paths of 3,000 bytes
		dir := pathOf(b, strings.Repeat(strings.Repeat("d", 249)+"/", 12))
		err := os.MkdirAll(dir, 0o755)
		count, _ := strconv.Atoi(rest)
		for i := 0; i < count && err == nil; i++ {
			err = os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o644)
		}
		if err != nil {
			status.Code = 1
		}
	case "flood":
		total, _ := strconv.Atoi(rest)
		for n, piece := 0, []byte(strings.Repeat("x", 1023)+"\n"); n < total; n += len(piece) {
			_, _ = cmd.Stdout.Write(piece)
		}
	case "hang":
		_, _ = io.WriteString(cmd.Stdout, "so far\n")
		select {
		case <-ctx.Done():
		case <-b.Done():
		}
		status = sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: ctx.Err() != nil}
	case "gate":
		_, _ = io.WriteString(cmd.Stdout, "before\n")
		select {
		case <-f.gate:
			_, _ = io.WriteString(cmd.Stdout, "after\n")
			_, _ = io.WriteString(cmd.Stderr, "done\n")
			status.Code = 3
		case <-ctx.Done():
			status = sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}
		case <-b.Done():
			status = sandbox.ExitStatus{Code: -1, Signal: 9}
		}
	case "cat":
		if cmd.Stdin != nil {
			_, _ = io.Copy(cmd.Stdout, cmd.Stdin)
		}
	case "terminal":
		return runTerminal(ctx, b, cmd)
	case "env":
		_, _ = io.WriteString(cmd.Stdout, strings.Join(cmd.Variables, "\n"))
	case "bytes":
		text, _ := hex.DecodeString(rest)
		for i := range text { // one at a time
			_, _ = cmd.Stdout.Write(text[i : i+1])
			_, _ = cmd.Stderr.Write(text[i : i+1])
		}
	case "cling": // it ends with its sandbox alone
		f.clings <- struct{}{}
		<-ctx.Done()
		f.clings <- struct{}{}
		<-b.Done()
		status = sandbox.ExitStatus{Code: -1, Signal: 9, Cancelled: true}
	default:
		status.Code = 127
	}
	return status
}

// runTerminal repeats each line that is typed and each size that the terminal gets. The line
// "exit CODE" ends it, "flood" writes until it is cancelled, for which it doesn't wait, and
// after "deaf" it reads nothing.
func runTerminal(ctx context.Context, b *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
	cancelled := sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}
	fmt.Fprintf(cmd.Stdout, "on %dx%d\n", cmd.Terminal.Rows, cmd.Terminal.Columns)
	lines := make(chan string)
	go func() {
		for typed := bufio.NewScanner(cmd.Stdin); typed.Scan(); {
			select {
			case lines <- typed.Text():
			case <-ctx.Done():
				return
			case <-b.Done():
				return
			}
		}
	}()
	for {
		select {
		case size := <-cmd.Terminal.Resizes:
			fmt.Fprintf(cmd.Stdout, "size %dx%d\n", size.Rows, size.Columns)
		case line := <-lines:
			verb, rest, _ := strings.Cut(line, " ")
			switch verb {
			case "exit":
				code, _ := strconv.Atoi(rest)
				return sandbox.ExitStatus{Code: code}
			case "deaf":
				<-ctx.Done()
			case "flood":
				for ctx.Err() == nil {
					_, _ = cmd.Stdout.Write(make([]byte, 32<<10))
				}
			default:
				fmt.Fprintf(cmd.Stdout, "got %s\n", line)
			}
		case <-ctx.Done():
			return cancelled
		case <-b.Done():
			return cancelled
		}
	}
}

// copyFiles packs and unpacks in the workspace, like the guest's binary, or
// calls transfer.
func (f *fakeBackend) copyFiles(ctx context.Context, b *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
	if f.transfer != nil {
		return f.transfer(ctx, cmd)
	}
	var err error
	switch cmd.Argv[1] {
	case guestarchive.PackWord:
		err = guestarchive.Pack(cmd.Stdout, pathOf(b, cmd.Argv[2]), guestarchive.PackOptions{Name: cmd.Argv[3], LeaveOut: func(string, error) error { return nil }})
	case guestarchive.UnpackWord:
		r, w := io.Pipe()
		go func() {
			_, err := io.Copy(w, cmd.Stdin)
			w.CloseWithError(err)
		}()
		defer context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })()
		err = guestarchive.Unpack(r, pathOf(b, cmd.Argv[2]), guestarchive.Bounds{})
		r.CloseWithError(io.ErrClosedPipe)
	}
	switch {
	case err == nil:
		return sandbox.ExitStatus{}
	case ctx.Err() != nil:
		return sandbox.ExitStatus{Code: -1, Signal: 15, Cancelled: true}
	}
	fmt.Fprintln(cmd.Stderr, err)
	switch {
	case errors.Is(err, guestarchive.ErrNoDirectory):
		return sandbox.ExitStatus{Code: guestarchive.StatusNoDirectory}
	case errors.Is(err, guestarchive.ErrEntry), errors.Is(err, guestarchive.ErrMalformed), errors.Is(err, guestarchive.ErrSpecial):
		return sandbox.ExitStatus{Code: guestarchive.StatusRefused}
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return sandbox.ExitStatus{Code: guestarchive.StatusNoFile}
	}
	return sandbox.ExitStatus{Code: 1}
}
