// Package skill finds the skills of a session: directories with a SKILL.md, whose
// front matter names and describes the skill and whose body the model gets when it
// loads the skill with the tool load_skill. What a skill declares in allowed-tools
// restricts the session that has loaded it, and never permits anything.
//
// A skill of the workspace is text that its author wrote: data. One of the operator's
// directories, or one whose file is as it was when the user trusted it, counts as the
// operator's.
package skill
