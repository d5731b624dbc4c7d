package project

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/caisson-run/caisson/runner"
	display "github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/skill"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Instruction is an instruction file of a workspace that can be trusted.
type Instruction struct {
	// Path is relative to the workspace. It may contain control characters.
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	// Text is the content, safe to show.
	Text string `json:"text"`
}

// maxInstructions bounds the instruction files of a workspace that can be trusted.
const maxInstructions = 64

// FindInstructions returns the instruction files of a workspace, the root's first and
// then others by path, and then the SKILL.md files. notes describe files that can't be
// trusted. It follows only symlinks of skills that stay in the workspace.
func FindInstructions(ctx context.Context, dir *os.File, hostPath string) (found []Instruction, notes []string, err error) {
	r, err := workspace.NewReader(dir, workspace.ReaderOptions{HostPath: hostPath, MaxEntries: maxEntries, Deadline: 10 * time.Second})
	if err != nil {
		return nil, nil, err
	}
	list, err := r.List(ctx, ".", maxEntries)
	if err != nil {
		return nil, nil, err
	}
	if list.Truncated || len(list.Incomplete) > 0 {
		notes = append(notes, "not every directory was searched; instruction files that were not found are not trusted")
	}
	room := runner.MaxTrustedInstructions
	for _, name := range instructionPaths(list.Entries) {
		i, err := readInstruction(ctx, r, name)
		switch {
		case err != nil:
			notes = append(notes, name+" can't be trusted: "+err.Error())
		case len(found) == maxInstructions || len(i.Text) > room:
			notes = append(notes, fmt.Sprintf("%s can't be trusted: at most %d files and %d bytes of instructions can", name, maxInstructions, runner.MaxTrustedInstructions))
		case strings.TrimSpace(i.Text) != "":
			room -= len(i.Text)
			found = append(found, i)
		}
	}
	skills, skillNotes := findSkills(ctx, r)
	return append(found, skills...), append(notes, skillNotes...), nil
}

// findSkills returns the skills of a workspace, each with the parts of its SKILL.md
// that are used.
func findSkills(ctx context.Context, r *workspace.Reader) (found []Instruction, notes []string) {
	set := skill.Find(ctx, skill.Options{Workspace: r})
	for _, i := range set.Ignored() {
		notes = append(notes, i.Name+" can't be trusted: "+i.Why)
	}
	for _, s := range set.Skills() {
		text := "skill " + s.Name + ": " + s.Description + "\n"
		if s.Declares {
			text += "allowed-tools: " + strings.Join(s.AllowedTools, " ") + "\n"
		}
		text, _ = display.DisplayLines(text + s.Body)
		found = append(found, Instruction{Path: s.Path, SHA256: s.SHA256, Text: text})
	}
	return found, notes
}

func instructionPaths(entries []workspace.Entry) []string {
	names := runner.InstructionNames()
	top, nested := len(names), []string(nil)
	for _, e := range entries {
		switch i := slices.Index(names, e.Path); {
		case i >= 0:
			top = min(top, i)
		case path.Base(e.Path) == names[0] && !slices.ContainsFunc(strings.Split(path.Dir(e.Path), "/"), func(d string) bool {
			return strings.HasPrefix(d, ".") || slices.Contains(skipped, d)
		}):
			nested = append(nested, e.Path)
		}
	}
	slices.Sort(nested)
	return append(names[top:min(top+1, len(names))], nested...)
}

func readInstruction(ctx context.Context, r *workspace.Reader, name string) (Instruction, error) {
	info, err := r.Lstat(ctx, name)
	if err != nil {
		return Instruction{}, err
	}
	if info.Type != workspace.TypeFile {
		return Instruction{}, fmt.Errorf("it is a %s", info.Type)
	}
	f, err := r.ReadFile(ctx, name, 0, runner.MaxInstructionBytes+1)
	if err != nil {
		return Instruction{}, err
	}
	text, _ := display.DisplayLines(strings.ReplaceAll(string(f.Data), "\r\n", "\n"))
	switch {
	case len(f.Data) > runner.MaxInstructionBytes, len(text) > runner.MaxInstructionBytes:
		return Instruction{}, fmt.Errorf("it is larger than %d bytes", runner.MaxInstructionBytes)
	case !utf8.Valid(f.Data):
		return Instruction{}, errors.New("it is not UTF-8")
	}
	sum := sha256.Sum256(f.Data)
	return Instruction{Path: name, SHA256: hex.EncodeToString(sum[:]), Text: text}, nil
}

// TrustedFiles returns files in the form that trust stores, sorted by path.
func TrustedFiles(list []Instruction) []approval.TrustedFile {
	files := []approval.TrustedFile{}
	for _, i := range list {
		files = append(files, approval.TrustedFile{Path: i.Path, SHA256: i.SHA256})
	}
	slices.SortFunc(files, func(a, b approval.TrustedFile) int { return strings.Compare(a.Path, b.Path) })
	return files
}

// DescribeInstructions returns lines that show the text of files, and the notes.
func DescribeInstructions(list []Instruction, notes []string) []string {
	var lines []string
	for _, i := range list {
		lines = append(lines, fmt.Sprintf("  %s  sha256 %s; to the model, as your instructions:", i.Path, i.SHA256))
		for l := range strings.Lines(i.Text) {
			lines = append(lines, "    | "+strings.ReplaceAll(strings.TrimSuffix(l, "\n"), "\t", "    "))
		}
	}
	for _, n := range notes {
		lines = append(lines, "  note: "+n)
	}
	return lines
}
