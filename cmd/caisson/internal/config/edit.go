package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/moby/sys/atomicwriter"
)

// Addition adds to one setting of a workspace: items to a list, or entries to a map.
type Addition struct {
	// Keys lead to the setting, such as host_image and toolchains.
	Keys []string
	// Items are the new items of a list, as YAML on one line. Inherited are the items of
	// other layers, whose list the workspace's replaces.
	Items, Inherited []string
	// Entries are the new entries of a map: each is a key and a value, as YAML on one
	// line.
	Entries [][2]string
	// Comment follows the setting. "" means none.
	Comment string
}

// Value returns the new value on one line.
func (a Addition) Value() string {
	if a.Entries == nil {
		return "[" + strings.Join(slices.Concat(a.Inherited, a.Items), ", ") + "]"
	}
	return "{" + a.entryText() + "}"
}

func (a Addition) entryText() string {
	var pairs []string
	for _, e := range a.Entries {
		pairs = append(pairs, e[0]+": "+e[1])
	}
	return strings.Join(pairs, ", ")
}

// Key returns the setting's key, such as host_image.toolchains.
func (a Addition) Key() string { return strings.Join(a.Keys, ".") }

// line returns the setting as an indented line of a file.
func (a Addition) line(indent int) string {
	text := fmt.Sprintf("%*s%s", indent, "", nestedFlow(a.Keys, a))
	if a.Comment != "" {
		text += "  # " + a.Comment
	}
	return text + "\n"
}

// LinesFor returns additions as the lines of a file that has no settings for the
// workspace yet.
func LinesFor(workspace string, additions []Addition) string {
	var b strings.Builder
	b.WriteString("workspaces:\n  " + FlowScalar(workspace) + ":\n")
	for _, a := range additions {
		b.WriteString(a.line(4))
	}
	return b.String()
}

// FlowScalar returns a string as YAML for a list or map on one line. It quotes a string
// that could be read as something else.
func FlowScalar(word string) string {
	isPlain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-~+", r)
	}
	begins := strings.HasPrefix(word, "/") || strings.HasPrefix(word, "~/") || len(word) > 1 && word[0] >= 'a' && word[0] <= 'z'
	if begins && strings.IndexFunc(word, func(r rune) bool { return !isPlain(r) }) < 0 && !slices.Contains(plainWords, word) {
		return word
	}
	quoted, _ := json.Marshal(word) // a string is always valid
	return string(quoted)
}

// plainWords are words that YAML doesn't read as strings.
var plainWords = []string{"true", "false", "null", "yes", "no", "on", "off"}

// Edit is a change of the user's file.
type Edit struct {
	// Path is the file, which need not exist. Text is its new content.
	Path string
	Text []byte

	before []byte
	exists bool
}

// EditWorkspace returns the user's file with additions for a workspace. The workspace's
// path must be absolute and resolved. Comments, order and all other settings stay as they
// are. The error is an [Error]: the file can't be read, or not be extended as it is
// written.
func EditWorkspace(o Options, workspace string, additions []Addition) (*Edit, error) {
	e := &Edit{Path: o.Path}
	if strings.Contains(workspace, "${") {
		return nil, &Error{Where: o.Path, Message: "the path " + workspace + " contains ${, which stands for a variable", Hint: "use workspaces with another name"}
	}
	text, err := readPrivate(o.Path)
	if problem, ok := errors.AsType[*Error](err); ok {
		return nil, problem
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{Where: o.Path, Message: err.Error()}
	}
	e.before, e.exists = text, err == nil
	getenv := newLookup(o.Environ)
	home, _ := getenv("HOME")
	var old, edited File
	if err := parse(o.Path, text, getenv, &old); err != nil {
		return nil, err
	}
	name := ShortenHome(workspace, home)
	for _, have := range sortedKeys(old.Workspaces) {
		if path, err := resolveFolder(have, home); err == nil && path == workspace {
			name = have // the last one counts most
		}
	}
	// Each addition goes before the existing settings, so add the first one last.
	for _, a := range slices.Backward(additions) {
		if text, err = insert(text, append([]string{"workspaces", name}, a.Keys...), a); err != nil {
			return nil, &Error{Where: o.Path, Message: err.Error(), Hint: "add the settings by hand"}
		}
	}
	if err := parse(o.Path, text, getenv, &edited); err != nil {
		return nil, &Error{Where: o.Path, Message: "the settings can't be put in: " + err.Error(), Hint: "add the settings by hand"}
	}
	if err := checkEdit(old, edited, name, additions); err != nil {
		return nil, &Error{Where: o.Path, Message: err.Error(), Hint: "add the settings by hand"}
	}
	e.Text = text
	return e, nil
}

// checkEdit refuses an edit that changed anything else.
func checkEdit(old, edited File, name string, additions []Addition) error {
	before, after := map[string]string{}, map[string]string{}
	for _, v := range listValues(old.Workspaces[name]) {
		before[v.Key] = v.Text
	}
	for _, v := range listValues(edited.Workspaces[name]) {
		after[v.Key] = v.Text
	}
	added := func(key string) bool {
		return slices.ContainsFunc(additions, func(a Addition) bool { return key == a.Key() || strings.HasPrefix(key, a.Key()+".") })
	}
	maps.DeleteFunc(before, func(key, _ string) bool { return added(key) })
	maps.DeleteFunc(after, func(key, _ string) bool { return added(key) })
	old.Workspaces, edited.Workspaces = maps.Clone(old.Workspaces), maps.Clone(edited.Workspaces)
	delete(old.Workspaces, name)
	delete(edited.Workspaces, name)
	if len(old.Workspaces) == 0 && len(edited.Workspaces) == 0 {
		old.Workspaces, edited.Workspaces = nil, nil
	}
	if !maps.Equal(before, after) || !reflect.DeepEqual(old, edited) {
		return errors.New("the settings can't be put in without changing others")
	}
	return nil
}

// Target returns the file that Write replaces: Path without symlinks.
func (e *Edit) Target() (string, error) {
	if e.exists {
		return filepath.EvalSymlinks(e.Path)
	}
	if _, err := os.Lstat(e.Path); err == nil {
		return "", &Error{Where: e.Path, Message: "it is a symlink to a file that does not exist", Hint: "make the file, or remove the symlink"}
	}
	// Resolve the directories that exist. The others can't be symlinks.
	dir, rest := filepath.Dir(e.Path), filepath.Base(e.Path)
	for {
		end, err := filepath.EvalSymlinks(dir)
		if err == nil {
			return filepath.Join(end, rest), nil
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return "", err
		}
		dir, rest = filepath.Dir(dir), filepath.Join(filepath.Base(dir), rest)
	}
}

// Write replaces the whole file and keeps its mode. It makes a file that doesn't exist.
// It refuses one that has changed since it was read.
func (e *Edit) Write() error {
	target, err := e.Target()
	if err != nil {
		return err
	}
	mode := fs.FileMode(0o600)
	if e.exists {
		now, err := readPrivate(e.Path)
		if err != nil {
			return err
		}
		info, err := os.Stat(target)
		if err != nil {
			return err
		}
		if !bytes.Equal(now, e.before) {
			return &Error{Where: e.Path, Message: "it changed while it was edited", Hint: "run the command again"}
		}
		mode = info.Mode().Perm()
	} else if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	return atomicwriter.WriteFile(target, e.Text, mode)
}

// insert returns the text of a file with an addition at keys.
func insert(text []byte, keys []string, a Addition) ([]byte, error) {
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, err
	}
	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.CommentType && doc.Body.Type() != ast.NullType {
			body = doc.Body
		}
	}
	if body == nil {
		return appendLines(text, nestedLines(keys, a, 0)), nil
	}
	i := inserter{text: text, addition: a}
	return i.insertBelow(body, 0, 0, keys)
}

// nestedLines returns an addition at keys as lines. The keys above the setting have a
// line each.
func nestedLines(keys []string, a Addition, indent int) string {
	var b strings.Builder
	for len(keys) > len(a.Keys) {
		fmt.Fprintf(&b, "%*s%s:\n", indent, "", FlowScalar(keys[0]))
		keys, indent = keys[1:], indent+2
	}
	a.Keys = keys
	b.WriteString(a.line(indent))
	return b.String()
}

func appendLines(text []byte, lines string) []byte {
	if len(text) > 0 && text[len(text)-1] != '\n' {
		lines = "\n" + lines
	}
	return slices.Concat(text, []byte(lines))
}
