package file

import (
	"cmp"
	"encoding/json"
	"maps"
)

func pathAliases(more map[string]string) map[string]string {
	all := map[string]string{"file_path": "path", "filePath": "path", "filename": "path", "file": "path", "target_file": "path"}
	maps.Copy(all, more)
	return all
}

// onePath returns a [tools.Definition].Paths for an input with one path, which
// defaults to otherwise.
func onePath(otherwise string) func(json.RawMessage) []string {
	return func(raw json.RawMessage) []string {
		var in struct {
			Path string `json:"path"`
		}
		_ = json.Unmarshal(raw, &in) // it passed the schema
		if path := cmp.Or(in.Path, otherwise); path != "" {
			return []string{path}
		}
		return nil
	}
}

// count is an input's optional limit or line number.
type count int64

// orDefault returns c, at most most, or n if c was left out.
func (c count) orDefault(n, most int) int {
	if c <= 0 {
		return n
	}
	return int(min(int64(c), int64(most)))
}
