package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// maxTaskBytes bounds a task.
const maxTaskBytes = 1 << 20

func readBounded(in io.Reader, name string) (string, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxTaskBytes+1))
	problem := runner.Problem{Mend: "Give a task of at most 1 MiB of text."}
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
	return "", &runner.Error{Status: runner.ExitInput, Problem: problem, Err: err}
}

// answerFile is where -o puts the answer. It is opened before the agent runs,
// and held: what the agent makes of its name meanwhile changes nothing.
type answerFile struct{ file *os.File }

// openAnswer creates or empties the file. A name that is a link out of its
// folder, or a folder reached through a link that an earlier session could
// have made, is refused.
func openAnswer(path string) (*answerFile, error) {
	if path == "" {
		return &answerFile{}, nil
	}
	abs, err := filepath.Abs(path)
	if err == nil {
		var dir *os.File
		if dir, err = workspace.OpenDir(filepath.Dir(abs)); err == nil {
			defer func() { _ = dir.Close() }() // only looked at
			var root *os.Root
			if root, err = os.OpenRoot(filepath.Dir(abs)); err == nil {
				defer func() { _ = root.Close() }()
				var f *os.File
				if f, err = root.OpenFile(filepath.Base(abs), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644); err == nil {
					return &answerFile{f}, nil
				}
			}
		}
	}
	return nil, &runner.Error{Status: runner.ExitInput, Err: err, Problem: runner.Problem{
		Cause: fmt.Sprintf("the answer can't be written to %s: %v", path, err), Mend: "Name a file that you can write with -o.",
	}}
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

func (a *answerFile) close() error {
	if a.file == nil {
		return nil
	}
	return a.file.Close()
}

// printAnswer writes the answer to standard output: as it is to a file or a
// pipe, made safe to a terminal.
func printAnswer(w io.Writer, answer string, terminal bool) error {
	if answer == "" {
		return nil
	}
	if terminal {
		answer, _ = tools.DisplayLines(answer)
	}
	_, err := io.WriteString(w, withNewline(answer))
	return err
}

func withNewline(s string) string {
	if s == "" || strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}
