package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools"
)

// TestServeSkills: a client can't choose more skills than the configuration, and a
// declared tool that requires an administrator is only offered for an administrator's
// messages.
func TestServeSkills(t *testing.T) {
	url, requests := serveModel(t)
	config := "stream: false\nmodels: {main: {provider: openai, model: m, max_retries: 0, base_url: \"" + url + "/v1\"}}\n" +
		"tools: {deploy: {description: Deploys., command: [deploy], requires_admin: true}, build: {description: Builds., command: [build]}}\n" +
		"serve: {tokens: {alice: {env: ALICE, roles: [admin]}, bob: {env: BOB}}}\n"
	s := startServe(t, config).up()
	admin, other := strings.Repeat("a", 40), strings.Repeat("b", 40)
	for path, text := range map[string]string{
		filepath.Join(s.root, "one/.agents/skills/theirs/SKILL.md"):  "---\nname: theirs\ndescription: Describes theirs.\n---\nDo.\n",
		filepath.Join(s.home, ".config/caisson/skills/own/SKILL.md"): "---\nname: own\ndescription: Describes own.\n---\nDo.\n",
	} {
		writeFile(t, path, text, 0o600)
	}
	// session returns a new session's skills and the tools offered in its first turn.
	session := func(token, skills string) (names []string, offered []tools.Name) {
		t.Helper()
		id := s.begin(token, `{"workspace":"one","model":"main"`+skills+`}`)
		defer s.do(token, "DELETE", "/sessions/"+id, "")
		var report runner.SkillReport
		if status, text := s.do(token, "GET", "/sessions/"+id+"/skills", ""); status != http.StatusOK || json.Unmarshal([]byte(text), &report) != nil {
			t.Fatalf("%d %s", status, text)
		}
		for _, one := range report.Skills {
			names = append(names, one.Name)
		}
		if status, text := s.do(token, "POST", "/sessions/"+id+"/turns", `{"message":"hello"}`); status != http.StatusAccepted {
			t.Fatalf("%d %s", status, text)
		}
		var request struct {
			Tools []struct{ Function struct{ Name tools.Name } }
		}
		must(t, json.Unmarshal([]byte(<-requests), &request))
		for _, tool := range request.Tools {
			offered = append(offered, tool.Function.Name)
		}
		slices.Sort(offered)
		if !slices.Equal(offered, report.Tools) {
			t.Errorf("offered are %v, and the server names %v", offered, report.Tools)
		}
		return names, offered
	}
	for skills, want := range map[string]string{"": "own theirs", `,"skills":"all"`: "own theirs", `,"skills":"user"`: "own", `,"skills":"off"`: ""} {
		if names, offered := session(other, skills); strings.Join(names, " ") != want || slices.Contains(offered, "load_skill") != (want != "") {
			t.Errorf("%s: skills %v, tools %v", skills, names, offered)
		}
	}
	for token, want := range map[string]bool{admin: true, other: false} {
		if _, offered := session(token, ""); slices.Contains(offered, "deploy") != want || !slices.Contains(offered, "build") {
			t.Errorf("tools for an administrator %v: %v", want, offered)
		}
	}
	must(t, os.WriteFile(filepath.Join(s.home, ".config/caisson/config.yaml"), []byte("skills: user\n"+config), 0o600))
	if names, _ := session(other, ""); strings.Join(names, " ") != "own" {
		t.Errorf("skills of the server's configuration: %v", names)
	}
	for skills, want := range map[string]int{"all": 422, "none": 422, "off": 201} {
		status, text := s.do(admin, "POST", "/sessions", `{"workspace":"one","model":"main","skills":"`+skills+`"}`)
		if status != want || skills == "all" && !strings.Contains(text, "more than the server's") {
			t.Errorf("skills %s: %d %s", skills, status, text)
		}
	}
}
