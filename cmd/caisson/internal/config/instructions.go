package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools/skill"
)

// instructionsFileName is the file of the user's instructions, beside config.yaml.
const instructionsFileName = "AGENTS.md"

const maxInstructionBytes = 32 << 10

// OperatorInstructions returns the operator's instructions: the file in configDir, the
// setting, and the file that a setting names. A file must be the user's own.
func (c *Config) OperatorInstructions(configDir string) ([]runner.InstructionText, error) {
	var all []runner.InstructionText
	add := func(source, text string) error {
		switch {
		case len(text) > maxInstructionBytes:
			return &Error{Where: source, Message: fmt.Sprintf("instructions of more than %d bytes", maxInstructionBytes), Hint: "shorten them"}
		case !utf8.ValidString(text):
			return &Error{Where: source, Message: "instructions that are not UTF-8", Hint: "write them as UTF-8"}
		case strings.TrimSpace(text) != "":
			all = append(all, runner.InstructionText{Source: source, Text: text})
		}
		return nil
	}
	if configDir != "" {
		file := filepath.Join(configDir, instructionsFileName)
		text, err := readInstructions(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err := add(ShortenHome(file, c.home), text); err != nil {
			return nil, err
		}
	}
	if c.Instructions != nil {
		if err := add("instructions", *c.Instructions); err != nil {
			return nil, c.addPlace(err)
		}
	}
	if c.InstructionsFile == nil || *c.InstructionsFile == "" {
		return all, nil
	}
	file, err := c.instructionsPath()
	if err != nil {
		return nil, c.addPlace(err)
	}
	text, err := readInstructions(file)
	if err != nil {
		return nil, err
	}
	return all, add(ShortenHome(file, c.home), text)
}

const skillsDirName = "skills"

// OperatorSkillDirs returns the operator's directories of skills: the one in configDir
// and the configured ones. They need not exist.
func (c *Config) OperatorSkillDirs(configDir string) ([]skill.Dir, error) {
	var dirs []skill.Dir
	if configDir != "" {
		path := filepath.Join(configDir, skillsDirName)
		dirs = append(dirs, skill.Dir{Path: path, Shown: ShortenHome(path, c.home)})
	}
	for _, name := range c.SkillDirs {
		path, err := expandHome(name, c.home)
		if err != nil {
			return nil, c.addPlace(&Error{Where: "skill_dirs", Item: name, Message: err.Error(), Hint: "write it from / or ~/ on"})
		}
		path = filepath.Clean(path)
		dirs = append(dirs, skill.Dir{Path: path, Shown: ShortenHome(path, c.home)})
	}
	return dirs, nil
}

// instructionsPath returns the path of instructions_file. Only a flag may be relative
// to the working directory: a relative setting would name another file in each
// workspace.
func (c *Config) instructionsPath() (string, error) {
	name := *c.InstructionsFile
	if strings.HasPrefix(c.origins.find("instructions_file"), fromFlag) {
		return filepath.Abs(name)
	}
	path, err := expandHome(name, c.home)
	if err != nil {
		return "", &Error{Where: "instructions_file", Message: err.Error(), Hint: "write it from / or ~/ on"}
	}
	return path, nil
}

// readInstructions reads a file of instructions. Only root and the user may be able to
// write it.
func readInstructions(file string) (string, error) {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", &Error{Where: file, Message: "there is no such file", Hint: "write the path of a file with instructions", Err: err}
	case err != nil:
		return "", &Error{Where: file, Message: err.Error()}
	case !info.Mode().IsRegular():
		return "", &Error{Where: file, Message: "instructions must be in a regular file"}
	case info.Size() > maxInstructionBytes:
		return "", &Error{Where: file, Message: fmt.Sprintf("instructions of more than %d bytes", maxInstructionBytes), Hint: "shorten them"}
	}
	text, err := readPrivate(file)
	return string(text), err
}
