package preset

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxConfigBytes bounds the configuration files of package managers.
const maxConfigBytes = 1 << 20

// ReadRegistries returns the registries that the configuration of package managers in
// a home directory names, by preset, for [Options.Registries]. A preset whose program
// names none is absent. Credentials in those files are not used. Files in the workspace,
// an absolute path or "", are not read, because commands can change them; ignored are
// those that exist.
func ReadRegistries(home, workspace string) (registries map[string][]string, ignored []string, err error) {
	out := map[string][]string{}
	var failed []error
	for _, f := range []struct {
		preset string
		path   string
		parse  func(section, key, value string) []string
	}{
		{"npm", ".npmrc", parseNPM},
		{"pip", ".config/pip/pip.conf", parsePip},
		{"pip", ".pip/pip.conf", parsePip},
		{"cargo", ".cargo/config.toml", parseCargo},
		{"go", ".config/go/env", parseGo},
	} {
		path := filepath.Join(home, f.path)
		if isWithin(path, workspace) {
			if _, err := os.Lstat(path); err == nil {
				ignored = append(ignored, path)
			}
			continue
		}
		text, err := readConfig(path)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		for _, s := range parseConfig(text, f.parse) {
			base, err := registryURL(s)
			if err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", path, err))
				continue
			}
			if !slices.Contains(out[f.preset], base) {
				out[f.preset] = append(out[f.preset], base)
			}
		}
	}
	return out, ignored, errors.Join(failed...)
}

// isWithin reports whether a path, or what it leads to, is in the workspace.
func isWithin(path, workspace string) bool {
	if workspace == "" {
		return false
	}
	paths := []string{path}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		paths = append(paths, real)
	}
	return slices.ContainsFunc(paths, func(path string) bool {
		below, err := filepath.Rel(workspace, path)
		return err == nil && filepath.IsLocal(below)
	})
}

// readConfig returns the text of a file, "" if there is none.
func readConfig(path string) (string, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > maxConfigBytes {
		return "", fmt.Errorf("%s is not a file of at most %d bytes", path, maxConfigBytes)
	}
	text, err := os.ReadFile(path)
	return string(text), err
}

// parseConfig calls parse with the settings of a file of lines such as key=value, in
// sections, and returns what it returns.
func parseConfig(text string, parse func(section, key, value string) []string) []string {
	var out []string
	section, key := "", ""
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || trimmed[0] == '#' || trimmed[0] == ';':
		case trimmed[0] == '[':
			section, key = strings.Trim(trimmed, "[] "), ""
		case line[0] == ' ' || line[0] == '\t': // continues a value
			if key != "" {
				out = append(out, parse(section, key, trimmed)...)
			}
		default:
			name, value, ok := strings.Cut(trimmed, "=")
			if !ok {
				continue
			}
			key = strings.TrimSpace(name)
			out = append(out, parse(section, key, strings.Trim(strings.TrimSpace(value), `"'`))...)
		}
	}
	return out
}

func parseNPM(_, key, value string) []string {
	if key == "registry" || strings.HasPrefix(key, "@") && strings.HasSuffix(key, ":registry") {
		return []string{value}
	}
	return nil
}

func parsePip(section, key, value string) []string {
	if (section == "global" || section == "install") && (key == "index-url" || key == "extra-index-url") {
		return strings.Fields(value)
	}
	return nil
}

func parseCargo(section, key, value string) []string {
	if strings.HasPrefix(section, "source.") && key == "registry" || strings.HasPrefix(section, "registries.") && key == "index" {
		if strings.HasPrefix(value, "sparse+") {
			return []string{value}
		}
	}
	return nil
}

func parseGo(_, key, value string) []string {
	if key != "GOPROXY" {
		return nil
	}
	return slices.DeleteFunc(strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == '|' }), func(s string) bool {
		return s == "direct" || s == "off"
	})
}
