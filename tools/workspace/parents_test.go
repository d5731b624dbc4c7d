package workspace

import (
	"os/exec"
	"strings"
	"testing"
)

// TestParentsAreTheShells: a path with ".." is either the file that a shell means,
// or refused with a suggestion. The control removes the name before ".." without
// looking, and reads another file than the shell.
func TestParentsAreTheShells(t *testing.T) {
	if _, err := exec.LookPath("cat"); err != nil {
		t.Skip("needs cat")
	}
	modes(t, func(t *testing.T, walking bool) {
		l := newLayout(t)
		for _, file := range []string{"x", "d/x", "d/deep/x", "d/deep/er/x"} {
			l.file(file, file)
		}
		l.link("dirlink", "d/deep")
		l.link("d/filelink", "deep/x")
		l.link("dangling", "nowhere")
		r := l.readerIn(walking, ReaderOptions{HostPath: l.root, ContainerPath: "/workspace"})
		same, refused, fooled := 0, 0, 0
		for _, p := range []string{
			"x", "d/../x", "d/deep/../x", "d/deep/../../x", "d/./deep//../x", "dirlink/x", "dirlink/er/../x", "d/deep/er/../../x", "d/..//d/x",
			"dirlink/../x", "dirlink/er/../../x", "d/../dirlink/../x", "dirlink/../deep/x", "d/filelink/../x", "dangling/../x", "missing/../x", "x/../x", "d/x/../x", "{root}/dirlink/../x",
		} {
			p = strings.ReplaceAll(p, "{root}", l.root)
			cat := exec.Command("cat", "--", p)
			cat.Dir = l.root
			theirs, failed := cat.Output()
			shell := string(theirs)
			if failed != nil {
				shell = ""
			}
			plain, err := read(r, p)
			if err == nil && plain != shell {
				fooled++
			}
			if err := r.Scope(t.Context(), p); err != nil {
				refused++
				if kindOf(err) != KindInvalid || !strings.Contains(err.Error(), "before ..") || !strings.Contains(err.Error(), "write ") {
					t.Errorf("%s: %v, want what was meant", p, err)
				}
				continue
			}
			if err == nil && plain != shell {
				t.Errorf("%s is %q, and %q for a shell", p, plain, shell)
			}
			same++
		}
		if same < 8 || refused < 8 || fooled < 4 {
			t.Errorf("%d paths are the shell's, %d are refused, %d are another file: they show little", same, refused, fooled)
		}
	})
}
