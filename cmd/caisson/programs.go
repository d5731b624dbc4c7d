package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// programs finds the programs that Caisson starts: beside its own executable,
// then where the configuration says, then on PATH. Never in the workspace, and
// never by a relative element of PATH: a project could have put it there.
type programs struct {
	executable func() (string, error)
	path       string // PATH
	workspace  string // "" where there is none
	// folder is the working folder of a command without a workspace, which may
	// well be one: what PATH finds in it does not count either. "" is none.
	folder string
}

// find gives the absolute path of the first of names that is there, with
// links resolved.
func (p programs) find(configured *string, names ...string) (string, error) {
	var tried []string
	for _, candidate := range p.candidates(configured, names) {
		real, err := filepath.EvalSymlinks(candidate)
		if err != nil {
			tried = append(tried, candidate)
			continue
		}
		if err := p.usable(real); err != nil {
			tried = append(tried, fmt.Sprintf("%s (%v)", candidate, err))
			continue
		}
		return real, nil
	}
	return "", &programError{name: names[0], tried: tried}
}

// ownDir returns the directory of Caisson's own program, "" where it is not known.
func (p programs) ownDir() string {
	self, err := p.executable()
	if err != nil {
		return ""
	}
	real, err := filepath.EvalSymlinks(self)
	if err != nil {
		return ""
	}
	return filepath.Dir(real)
}

func (p programs) candidates(configured *string, names []string) []string {
	var out []string
	if dir := p.ownDir(); dir != "" {
		for _, name := range names {
			out = append(out, filepath.Join(dir, name))
		}
	}
	if configured != nil {
		out = append(out, *configured)
	}
	for _, dir := range filepath.SplitList(p.path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if real, err := filepath.EvalSymlinks(dir); err == nil && liesIn(real, p.folder) {
			continue
		}
		for _, name := range names {
			out = append(out, filepath.Join(dir, name))
		}
	}
	return out
}

// usable says why a program must not be started, or nil.
func (p programs) usable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return errors.New("not an executable file")
	case info.Mode().Perm()&0o002 != 0:
		return errors.New("anybody can write it")
	}
	if liesIn(filepath.Dir(path), p.workspace) {
		return errors.New("it lies in the workspace")
	}
	return nil
}

// liesIn says whether a folder is another one, or is in it; "" holds nothing.
func liesIn(dir, root string) bool {
	if root == "" {
		return false
	}
	top, err := os.Stat(root)
	if err != nil {
		return false
	}
	for ; ; dir = filepath.Dir(dir) {
		if own, err := os.Stat(dir); err == nil && os.SameFile(own, top) {
			return true
		}
		if dir == filepath.Dir(dir) {
			return false
		}
	}
}

// programError says that a program that Caisson needs is not there.
type programError struct {
	name  string
	tried []string
}

// Error names the program and the places.
func (e *programError) Error() string {
	text := "find " + e.name + ": it is not there"
	if len(e.tried) > 0 {
		text += "; tried " + strings.Join(e.tried[:min(len(e.tried), 6)], ", ")
	}
	return text
}
