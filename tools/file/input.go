package file

import (
	"encoding/json"
	"maps"
)

// pathAliases are the names of path arguments in other tools.
func pathAliases(more map[string]string) map[string]string {
	all := map[string]string{"file_path": "path", "filePath": "path", "filename": "path", "file": "path", "target_file": "path"}
	maps.Copy(all, more)
	return all
}

// onePath returns the path of an input for the scope check and the order of
// calls, or otherwise if the input has none.
func onePath(otherwise string) func(json.RawMessage) []string {
	return func(raw json.RawMessage) []string {
		in := struct {
			Path string `json:"path"`
		}{Path: otherwise}
		if err := json.Unmarshal(raw, &in); err != nil || in.Path == "" {
			in.Path = otherwise
		}
		if in.Path == "" {
			return nil
		}
		return []string{in.Path}
	}
}

// count is a bound that an input may set.
type count int64

// orDefault returns the count, or n if it was left out, capped at most.
func (c count) orDefault(n, most int) int {
	if c <= 0 {
		return n
	}
	return int(min(int64(c), int64(most)))
}
