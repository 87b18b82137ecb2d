# Prints the words of the input that are nearest to `typed`, if any is near enough to be meant.
function distance(a, b,    i, j, cost, row, left, above, corner) {
  for (j = 0; j <= length(b); j++) row[j] = j
  for (i = 1; i <= length(a); i++) {
    corner = row[0]
    row[0] = i
    for (j = 1; j <= length(b); j++) {
      cost = corner + (substr(a, i, 1) != substr(b, j, 1))
      above = row[j] + 1
      left = row[j - 1] + 1
      corner = row[j]
      row[j] = cost < above ? cost : above
      if (left < row[j]) row[j] = left
    }
  }
  return row[length(b)]
}

{
  word = $0
  far = distance(tolower(typed), word)
  # A word cut short ("eval") is meant, however many letters are missing.
  if (typed != "" && index(word, tolower(typed)) == 1) far = 0
  if (best == "" || far < least) {
    least = far
    best = word
  } else if (far == least) {
    best = best " or " word
  }
}

END {
  allowed = length(typed) / 2
  if (best != "" && least <= allowed) print best
}
