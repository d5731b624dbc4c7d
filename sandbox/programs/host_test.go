package programs

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A workspace's program is never run on the host, whatever PATH or its name
// says.
func TestCommand(t *testing.T) {
	dir := t.TempDir()
	work, bin := filepath.Join(dir, "work"), filepath.Join(dir, "bin")
	own := writeProgramFile(t, filepath.Join(work, "bin", "xclip"))
	outside := writeProgramFile(t, filepath.Join(bin, "xclip"))
	for link, to := range map[string]string{"links": work + "/bin", "bin/linked": own} {
		must(t, os.Symlink(to, filepath.Join(dir, link)))
	}
	t.Chdir(work)
	for name, tt := range map[string]struct {
		path, program string
		want          string // "" is none
	}{
		"outside":                     {bin, "xclip", outside},
		"directory of the workspace":  {work + "/bin:" + bin, "xclip", outside},
		"only in the workspace":       {work + "/bin", "xclip", ""},
		"symlink to the directory":    {dir + "/links:" + bin, "xclip", outside},
		"symlink to the program":      {bin, "linked", ""},
		"relative directory":          {"bin:.:" + bin, "xclip", outside},
		"empty directory":             {":" + bin, "xclip", outside},
		"missing directory":           {work + "/later:" + bin, "xclip", outside},
		"absolute":                    {"", outside, outside},
		"absolute, of the workspace":  {"", own, ""},
		"relative":                    {"", "./bin/xclip", ""},
		"relative, outside":           {"", "../bin/xclip", ""},
		"not there":                   {bin, "xsel", ""},
		"empty name":                  {bin, "", ""},
		"symlink, absolute":           {"", bin + "/linked", ""},
		"symlinked directory, direct": {"", dir + "/links/xclip", ""},
	} {
		environ := []string{"PATH=/control", "A=b", "PATH=" + tt.path}
		cmd, err := Command(t.Context(), environ, []string{dir + "/absent", work}, tt.program, "-x")
		if tt.want == "" {
			if err == nil {
				t.Errorf("%s: %s", name, cmd.Path)
			}
			continue
		}
		if err != nil || cmd.Path != tt.want || cmd.Args[0] != tt.program || strings.Contains(strings.Join(cmd.Env, " "), work) || strings.Contains(cmd.Env[2], "links") {
			t.Errorf("%s: %v, %v", name, cmd, err)
		}
	}
	cmd, err := Command(context.Background(), []string{"PATH=" + work + "/bin"}, nil, "xclip")
	if err != nil || cmd.Path != own {
		t.Errorf("control: without a workspace: %v, %v", cmd, err)
	}
}
