# Labelled tables (tab-separated) out of the King James Bible, a verse a line ("Ge1:1 In the beginning ..."):
#   awk -f scripts/label_kjv.awk -v task=sections data/kjv.txt   passages of four verses, and the part of the Bible that they are from
#   awk -f scripts/label_kjv.awk -v task=pairs data/kjv.txt      two passages of four verses from one book, and whether two of them are the
#                                                                same (the end of one is the beginning of the other: half of the pairs)
# The same table whatever awk runs it: the random numbers are its own (Park and Miller 1988).

function random(n) {  # 0 .. n - 1
  state = (state * 16807) % 2147483647
  return int(state / 2147483647 * n)
}

function passage(first) {
  return verse[first] " " verse[first + 1] " " verse[first + 2] " " verse[first + 3]
}

BEGIN {
  state = 20130731
  n_verses = 0
  split("law Ge Exo Lev Num Deu;history Josh Jdgs Ruth 1Sm 2Sm 1Ki 2Ki 1Chr 2Chr Ezra Neh Est;poetry Job Psa Prv Eccl SSol;" \
        "prophets Isa Jer Lam Eze Dan Hos Joel Amos Obad Jonah Mic Nahum Hab Zep Hag Zec Mal;gospels_and_acts Mat Mark Luke John Acts;" \
        "epistles Rom 1Cor 2Cor Gal Eph Phi Col 1Th 2Th 1Tim 2Tim Titus Phmn Heb Jas 1Pet 2Pet 1Jn 2Jn 3Jn Jude Rev", sections, ";")
  for (s in sections) {
    count = split(sections[s], words, " ")
    for (w = 2; w <= count; ++w) section_of[words[w]] = words[1]
  }
}

{
  name = $1
  sub(/[0-9]+:[0-9]+$/, "", name)
  if (!(name in section_of)) {
    print "label_kjv.awk: line " NR " is of no book that it knows: " $1 > "/dev/stderr"
    failed = 1
    exit 1
  }
  if (!(name in first_of)) first_of[name] = n_verses
  last_of[name] = n_verses
  book_of[n_verses] = name
  sub(/^[^ ]+ /, "")
  verse[n_verses++] = $0
}

END {
  if (failed) exit 1
  for (i = 0; i < n_verses; ++i) {
    first = first_of[book_of[i]]
    starts = last_of[book_of[i]] - first - 2  # places where a passage of the book can begin
    if ((i - first) % 4 != 0 || i - first >= starts) continue
    if (task == "sections") {
      print passage(i) "\t" section_of[book_of[i]]
      continue
    }
    if (starts < 12) continue
    overlaps = n_pairs++ % 2 == 0
    if (overlaps) {
      other = i + 2 < first + starts ? i + 2 : i - 2
    } else {
      do other = first + random(starts); while (other > i - 4 && other < i + 4)
    }
    print passage(i) "\t" passage(other) "\t" (overlaps ? "overlap" : "apart")
  }
}
