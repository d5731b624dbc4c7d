package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// maxTaskBytes bounds a task.
const maxTaskBytes = 1 << 20

func readBounded(in io.Reader, name string) (string, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxTaskBytes+1))
	problem := record.Problem{Hint: "Give a task of at most 1 MiB of text."}
	switch {
	case err != nil:
		problem.Cause = fmt.Sprintf("the task can't be read from %s: %v", name, err)
	case len(text) > maxTaskBytes:
		problem.Cause = "the task in " + name + " is longer than 1 MiB"
	case strings.TrimSpace(string(text)) == "":
		problem.Cause = "the task in " + name + " is empty"
	default:
		return strings.TrimRight(string(text), "\n"), nil
	}
	return "", &commandError{Status: exitInput, Problem: problem, Err: err}
}

// answerFile is where -o puts the answer. It is opened before the agent runs,
// and held: what the agent makes of its name meanwhile changes nothing.
type answerFile struct{ file *os.File }

// openAnswer creates or empties the file. A directory reached through a link that
// an earlier session could have made, and a name that is a link, a pipe, or one
// of several names of a file, is refused: what lies in a workspace may have
// been put there for this.
func openAnswer(path string) (*answerFile, error) {
	if path == "" {
		return &answerFile{}, nil
	}
	f, err := createAnswer(path)
	if err != nil {
		return nil, &commandError{Status: exitInput, Err: err, Problem: record.Problem{
			Cause: fmt.Sprintf("the answer can't be written to %s: %v", path, err), Hint: "Name a file that you can write with -o.",
		}}
	}
	return &answerFile{f}, nil
}

func createAnswer(path string) (*os.File, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	dir, err := workspace.OpenDir(filepath.Dir(abs))
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // only held
	f, err := createIn(dir, filepath.Base(abs))
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("it is no regular file")
	case manyNames(info):
		err = errors.New("the file has other names, which would change too")
	default:
		err = f.Truncate(0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// write puts the answer into the file, as it is.
func (a *answerFile) write(answer string) error {
	if a.file == nil {
		return nil
	}
	if _, err := a.file.WriteString(withNewline(answer)); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}

// close closes the file. It fails where its name leads to another file by now:
// what was written is not where it was asked for.
func (a *answerFile) close() error {
	if a.file == nil {
		return nil
	}
	return errors.Join(a.checkName(), a.file.Close())
}

// checkName reports a file that was removed or replaced since it was opened.
func (a *answerFile) checkName() error {
	written, err := a.file.Stat()
	if err != nil {
		return fmt.Errorf("examine %s: %w", a.file.Name(), err)
	}
	named, err := os.Lstat(a.file.Name())
	if err != nil || !os.SameFile(written, named) {
		return fmt.Errorf("%s was removed or replaced while the run went on", a.file.Name())
	}
	return nil
}

// printAnswer writes the answer to standard output: as it is to a file or a
// pipe, made safe and broken at blanks to a terminal.
func printAnswer(a *app, answer string) error {
	if answer == "" {
		return nil
	}
	if a.terminal(a.stdout) {
		safe, _ := tools.DisplayLines(answer)
		columns, _ := a.size()
		answer = strings.Join(ui.Wrap(strings.Split(safe, "\n"), columns), "\n")
	}
	_, err := io.WriteString(a.stdout, withNewline(answer))
	return err
}

func withNewline(s string) string {
	if s == "" || strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}
